"""What every kind of stateful step answers, once, for all who act on it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from spark_jobs.plan.equations import BY_FATE, Equation, Holding
from spark_jobs.plan.tables import TableRef, beside
from spark_jobs.plan.verdicts import Never, Verdict
from spark_jobs.spec import Enrich, Late, Pipeline, Session, Table, Where
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import first_of, in_spark
from spark_jobs.spec.steps import StepSpec


class Replay(StrEnum):
    """How a batch over a range of events gives the rows that the stream wrote."""

    SUBTRACT = "all events less the recorded late pairs"
    BOUNDARIES = "the recorded batches again, each with its watermark"
    REFUSED = "refused: no part of the results can be computed again"


@dataclass(frozen=True)
class Side:
    """Events that come together, in one order of time.

    Attributes:
        name: `left` or `right` of a join; empty where there is one.
        tables: the source tables that they are read from.
        event_time: the column that they are late by.
        delay: how long the watermark waits for them: delay + grace; None: there is no watermark.
        steps: what happens to each of them before the operator.
    """

    name: str
    tables: tuple[Table, ...]
    event_time: str | None
    delay: timedelta | None
    steps: tuple[StepSpec, ...] = ()

    @property
    def several(self) -> bool:
        """Whether it has several tables, so that each event says which one it is of (`SOURCE_TABLE`)."""
        return len(self.tables) > 1

    @property
    def looks_up(self) -> bool:
        """Whether a table is asked for columns of its events, which may be set aside."""
        return any(isinstance(step, Enrich) for step in self.steps)


@dataclass(frozen=True)
class Operator(ABC):
    """A kind of stateful step (or none), in one pipeline.

    Attributes:
        pipeline: whose step it is.
    """

    pipeline: Pipeline

    kind: ClassVar[str]
    """Names the transform that computes it: `spark_jobs/transforms/operators/<kind>.py`."""

    @property
    def state_operators(self) -> tuple[str, ...]:
        """What Spark calls the operators that it is made of, in a query's progress."""
        return ()

    @property
    def replay(self) -> Replay:
        """How a batch gives the stream's rows."""
        if not self.can_be_recomputed or not self.placed_by:
            return Replay.REFUSED
        return Replay.BOUNDARIES if self.follows_result else Replay.SUBTRACT

    @property
    def state_stores(self) -> Mapping[str, str]:
        """Terms of the ledger -> what Spark calls the state stores whose rows they count, where rows are of two kinds.

        Spark's own count adds them up."""
        return {}

    @property
    @abstractmethod
    def repair_unit(self) -> str:
        """What one late event can change."""

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns of which the first with a value says where a result row lies in event time; empty: nothing does.

        By it a row belongs to a range.
        """
        return ()

    def placed_in(self, range_us: tuple[int, int]) -> str:
        """Which rows of the result lie in a range; SQL of Spark.

        Args:
            range_us: from, and up to; microseconds since 1970.
        """
        placed = first_of(self.placed_by, in_spark)
        begin, end = (f"timestamp_micros({instant}L)" for instant in range_us)
        return f"{placed} >= {begin} AND {placed} < {end}"

    @property
    def can_be_recomputed(self) -> bool:
        """Whether a backfill and a repair of it are built."""
        return False

    @property
    def merges_rows(self) -> bool:
        """Whether an event can make one row of several, so that no instant separates rows for certain."""
        return False

    @property
    def repaired_by_key(self) -> bool:
        """Whether a late event changes only rows of its own key."""
        return True

    @property
    def why_not_bootstrapped(self) -> str | None:
        """Why its history cannot be computed in batch up to a cut, beyond which the stream goes on; None: it can be."""
        return "no instant parts what it remembers of events before from what it needs for those after"

    def cut_upto(self, instant_us: int) -> int:
        """The newest instant, up to one, that parts its rows: each is made of events before it or lies beyond.

        Raises:
            TypeError: if nothing parts them, which `why_not_bootstrapped` says.
        """
        raise TypeError(f"{self.kind}: no instant parts its rows")

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """How far before and after a range events matter to the rows that belong to it."""
        return timedelta(0), timedelta(0)

    def closed(self, watermark_ms: int) -> str:
        """Which rows of the result the stream does not change any more once its watermark is there; SQL."""
        return f"({first_of(self.placed_by, in_spark)} < timestamp_micros({self.first_open_us(watermark_ms)}L))"

    def first_open_us(self, watermark_ms: int) -> int:
        """No row that is placed before this instant is open; microseconds since 1970."""
        touches_us = duration_ms(self.touches) * 1000
        return watermark_ms * 1000 - touches_us if touches_us else watermark_ms * 1000 + 1

    @property
    def touches(self) -> timedelta:
        """How far from a late event's own time the rows lie that it can change, where it missed no windows."""
        return timedelta(0)

    @property
    def follows_result(self) -> bool:
        """Whether the batch that read an event decides about it, beside what the result has from earlier ones."""
        return False

    @property
    def measures(self) -> Mapping[str, str]:
        """Columns that aggregate several events -> how; none where a row is of one event, or of a pair."""
        return {}

    @property
    def reads_as_stream(self) -> bool:
        """Whether no result may count an event that the stream has not read: the ledger could not tell it from one that
        was counted twice, or only its batch decides about it."""
        return self.follows_result

    @property
    def row_keys(self) -> tuple[str, ...]:
        """Columns that no two rows of the result share, copies of events included."""
        return self.keys

    @property
    def sides(self) -> tuple[Side, ...]:
        """What is read; a join has two."""
        pipeline = self.pipeline
        delay = pipeline.watermark.engine_delay if pipeline.watermark else None
        return (Side("", pipeline.source_tables, pipeline.event_time, delay, pipeline.row_steps),)

    @property
    def keeps_events_in_state(self) -> bool:
        """Whether Spark's state holds events with all of their columns, so that a new one does not fit a checkpoint."""
        return False

    @property
    def gives_events(self) -> bool:
        """Whether its result has about as many rows as events are read."""
        return False

    @property
    def withholds(self) -> bool:
        """Whether some of its rows are not written."""
        return any(isinstance(step, Where) for step in self.pipeline.result_steps)

    @property
    def verdict(self) -> Verdict:
        """By what an event is late."""
        return Never()

    @property
    def repair_keys(self) -> tuple[str, ...]:
        """Columns that an event has in common with the rows that it can change."""
        return self.event_keys

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a result row; none where each stands for itself."""
        return ()

    @property
    @abstractmethod
    def content(self) -> tuple[str, ...]:
        """Columns of a result row that a replay must give again: not measures, whose last digits may differ."""

    @property
    def event_keys(self) -> tuple[str, ...]:
        """Columns of an event by which the step remembers it."""
        return ()

    @property
    def gap(self) -> Session | None:
        """The session windows in which each event brings a gap of its own, if any."""
        return None

    def settled(self, terms: Mapping[str, int], duplicates: int) -> Mapping[str, int]:
        """The terms of a batch, once Spark's operators have told what they removed.

        Args:
            terms: counted over the events.
            duplicates: events that Spark removed because it had their key.
        """
        return terms

    @property
    def statistics(self) -> tuple[str, ...]:
        """Columns of the result by which its files are found."""
        return ()

    @property
    def horizon(self) -> timedelta:
        """How far past the newest event the watermark must move until every result is final."""
        return timedelta(0)

    @property
    def updates(self) -> bool:
        """Whether results are upserted while they change."""
        return self.pipeline.sink.mode == "update"

    @property
    def keeps_groups(self) -> bool:
        """Whether the result is picked out of all groups, which then have a table of their own."""
        return False

    @property
    def result_terms(self) -> Mapping[str, str]:
        """Terms of the ledger -> SQL aggregates over the rows that it gives in a batch."""
        return {}

    @property
    def keeps_late(self) -> bool:
        """Whether late events have a table."""
        watermark = self.pipeline.watermark
        return not isinstance(self.verdict, Never) and watermark is not None and watermark.late is not Late.DROP

    @property
    def result(self) -> TableRef:
        """The result table."""
        return TableRef(self.pipeline.sink.table, "result", self.keys, self.statistics)

    @property
    def late(self) -> TableRef:
        """Where late events are kept."""
        return TableRef(beside(self.pipeline.sink.table, "late"), "late")

    @property
    def sets_aside(self) -> bool:
        """Whether events that a step cannot use have a table."""
        return any(isinstance(step, Enrich) and step.missing == "quarantine" for step in self.pipeline.row_steps)

    @property
    def quarantine(self) -> TableRef:
        """Where they are kept."""
        return TableRef(beside(self.pipeline.sink.table, "quarantine"), "quarantine")

    @property
    def groups(self) -> TableRef:
        """Every group of an `update` sink."""
        if not self.keeps_groups:
            return self.result
        return TableRef(beside(self.pipeline.sink.table, "groups"), "groups", self.keys, self.statistics)

    @property
    def tables(self) -> tuple[TableRef, ...]:
        """All that it writes, the result last: what has the result has all of them."""
        groups = (self.groups,) if self.keeps_groups else ()
        late = (self.late,) if self.keeps_late else ()
        quarantine = (self.quarantine,) if self.sets_aside else ()
        return (*quarantine, *late, *groups, self.result)

    @property
    def equations(self) -> tuple[Equation, ...]:
        """What its ledger must satisfy."""
        return (BY_FATE,)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """What its tables must hold, by the ledger."""
        quarantine: tuple[Holding, ...] = ()
        if self.sets_aside:
            said = "set aside"
            quarantine = (Holding("quarantine", self.quarantine, "count(*)", ("quarantined",), said, of_epoch=True),)
        if not self.keeps_late:
            return quarantine
        if self.verdict.in_windows:
            measure, terms, said = "sum(len(missed_windows))", ("pairs_late",), "pairs judged"
        else:
            measure, terms, said = "count(*)", ("late",), "events judged"
        return (*quarantine, Holding("late", self.late, measure, terms, said, of_epoch=True))

    @property
    def open_in_result(self) -> tuple[str, TableRef, bool] | None:
        """Where results are updated: what of them Spark's state holds as well.

        Returns:
            A SQL aggregate, its table, and whether only windows that the watermark has not passed are meant; None:
            the result does not tell.
        """
        return None

    @property
    def counts_in_state(self) -> bool:
        """Whether each row of Spark's state says of how many events it is, as its last value."""
        return False

    def describe(self) -> str:
        """In a line."""
        return self.kind
