"""What a kind of stateful step builds for its pipeline: values, which all others read and nobody asks for the kind.

A kind that has another one behind it takes that one's values and replaces those that differ (`dataclasses.replace`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from spark_jobs.plan.equations import BY_FATE, Equation, Invariant
from spark_jobs.plan.lateness import LatenessRule, Never
from spark_jobs.plan.operators.units import Unit
from spark_jobs.plan.tables import TableRef, beside
from spark_jobs.spec import Enrich, Late, Pipeline, Table, Where
from spark_jobs.spec.names import column_named, first_of, in_spark
from spark_jobs.spec.steps import StepSpec

Step = TypeVar("Step", bound=StepSpec)


class AsStreamed(StrEnum):
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

    def time_column(self, table: Table) -> str | None:
        """The column of one of its tables that has the event time; None where there is none, or it is computed."""
        if self.event_time is None or table.select is None:
            return self.event_time
        return column_named(table.select[self.event_time])

    @property
    def looks_up(self) -> bool:
        """Whether a table is asked for columns of its events, which may be set aside."""
        return any(isinstance(step, Enrich) for step in self.steps)


@dataclass(frozen=True)
class State:
    """What Spark's state store keeps of a pipeline between batches; by default nothing.

    Attributes:
        operators: what Spark calls the operators, in a query's progress.
        event_keys: columns of an event by which the step remembers it.
        stores: terms of the ledger -> what Spark calls the state stores whose rows they count, where rows are of two
            kinds. Spark's own count adds them up.
        keeps_events: whether it holds events with all of their columns, so that a new column does not fit a checkpoint.
        packs_events: whether it keeps them as binary values, in an operator of ours.
        by_name: whether their columns are found by name, so that columns in another order fit.
        open_in: of an operator of ours: where the events lie that the ledger calls open; empty: nothing tells.
        counts_events: whether each row says of how many events it is, as its last value.
        gap_of_event: SQL of `GAP`, where each event brings a gap of its own to a session window; None: none does.
        in_one_partition: whether it is one row for all events, which no number of partitions divides.
        by_clock: whether it does something by the clock, so that Spark runs a batch at each trigger, with or without
            events.
    """

    operators: tuple[str, ...] = ()
    event_keys: tuple[str, ...] = ()
    stores: Mapping[str, str] = field(default_factory=dict)
    keeps_events: bool = False
    packs_events: bool = False
    by_name: bool = False
    open_in: tuple[str, ...] = ()
    counts_events: bool = False
    gap_of_event: str | None = None
    in_one_partition: bool = False
    by_clock: bool = False


@dataclass(frozen=True)
class Output:
    """The rows and the tables that a pipeline writes.

    Attributes:
        table: the result table's name.
        keys: columns that identify a result row; none where each stands for itself.
        row_keys: columns that no two rows of the result share, copies of events included.
        content: columns of a result row that a retry must give again: not measures, whose last digits may differ.
        statistics: columns of the result by which its files are found.
        measures: columns that aggregate several events -> how; none where a row is of one event, or of a pair.
        gives_events: whether it has about as many rows as events are read.
        rows_per_event: how many rows of a batch's result an event gives at most; None: there is no such bound.
        from_state: whether also events of earlier batches give rows.
        updates: whether results are upserted while they change.
        withholds: whether some of its rows are not written.
        keeps_groups: whether the result is picked out of all groups, which then have a table of their own.
        keeps_late: whether late events have a table.
        sets_aside: whether events that a step cannot use have a table.
    """

    table: str
    keys: tuple[str, ...]
    row_keys: tuple[str, ...]
    content: tuple[str, ...]
    statistics: tuple[str, ...]
    measures: Mapping[str, str] = field(default_factory=dict)
    gives_events: bool = False
    rows_per_event: int | None = None
    from_state: bool = False
    updates: bool = False
    withholds: bool = False
    keeps_groups: bool = False
    keeps_late: bool = False
    sets_aside: bool = False

    def most_rows(self, read: int, in_state: int) -> int | None:
        """How many rows a batch gives at most; None: nothing tells.

        Args:
            read: events that it reads.
            in_state: rows of the state before it, each of one event at least.
        """
        return None if self.rows_per_event is None else self.rows_per_event * (read + in_state * self.from_state)

    @property
    def result(self) -> TableRef:
        """The table that has the results, and the ledger in its history."""
        return TableRef(self.table, "result", self.keys, self.statistics)

    @property
    def late(self) -> TableRef:
        """Where late events are kept."""
        return TableRef(beside(self.table, "late"), "late")

    @property
    def quarantine(self) -> TableRef:
        """Where events are kept that a step cannot use."""
        return TableRef(beside(self.table, "quarantine"), "quarantine")

    @property
    def groups(self) -> TableRef:
        """Where every group of an `update` sink is; the result, where that has all of them."""
        if not self.keeps_groups:
            return self.result
        return TableRef(beside(self.table, "groups"), "groups", self.keys, self.statistics)

    @property
    def tables(self) -> tuple[TableRef, ...]:
        """All that is written, the result last: what has the result has all of them."""
        groups = (self.groups,) if self.keeps_groups else ()
        late = (self.late,) if self.keeps_late else ()
        quarantine = (self.quarantine,) if self.sets_aside else ()
        return (*quarantine, *late, *groups, self.result)


@dataclass(frozen=True)
class Accounting:
    """What the ledger of a pipeline says, and must satisfy.

    Attributes:
        equations: between terms of the ledger.
        invariants: between the ledger and the tables.
        result_terms: terms of the ledger -> SQL of a number; its sum over the rows that are given in a batch.
        open_in_result: where results are updated: what of them Spark's state holds as well. A SQL aggregate, its table,
            and whether only windows that the watermark has not passed are meant; None: the result does not tell.
        duplicates: whether Spark's state tells events that were on time from duplicates of them.
        pairs_of_first: how many windows each event belongs to that is not a duplicate; None: it has none.
    """

    equations: tuple[Equation, ...]
    invariants: tuple[Invariant, ...]
    result_terms: Mapping[str, str] = field(default_factory=dict)
    open_in_result: tuple[str, TableRef, bool] | None = None
    duplicates: bool = False
    pairs_of_first: int | None = None

    def of_batch(self, terms: Mapping[str, int], duplicates: int) -> Mapping[str, int]:
        """The terms of a batch, once Spark's operators have told what they removed.

        Args:
            terms: counted over the events.
            duplicates: events that Spark removed because it had their key.
        """
        if not self.duplicates:
            return terms
        # What Spark removed was neither late nor counted.
        on_time = terms["on_time"] - duplicates
        found = {**terms, "on_time": on_time, "duplicate": duplicates}
        return found if self.pairs_of_first is None else {**found, "pairs": on_time * self.pairs_of_first}


@dataclass(frozen=True)
class Recomputation:
    """How results are computed again in batch, and what one late event can change.

    Attributes:
        unit: of what a range is made, and where it can be cut.
        placed_by: the columns of which the first with a value says where a result row lies in event time; empty:
            nothing does. By it a row belongs to a range.
        repair_unit: what one late event can change, in words.
        repair_keys: columns that an event has in common with the rows that it can change.
        reach: how far before and after a range events matter to the rows that belong to it.
        touches: how far from a late event's own time the rows lie that it can change, where it missed no windows.
        impossible: why no part of the results can be computed again; None: it can.
        no_repair: why late events cannot be counted after all, in rows that stay right; None: they can.
        by_key: whether a late event changes only rows of its own key.
        follows_result: whether the batch that read an event decides about it, beside what the result has from earlier
            ones.
        reads_as_stream: whether no result may count an event that the stream has not read: the ledger could not tell it
            from one that was counted twice, or only its batch decides about it.
    """

    unit: Unit
    placed_by: tuple[str, ...]
    repair_unit: str
    repair_keys: tuple[str, ...]
    reach: tuple[timedelta, timedelta] = (timedelta(0), timedelta(0))
    touches: timedelta = timedelta(0)
    impossible: str | None = None
    no_repair: str | None = None
    by_key: bool = True
    follows_result: bool = False
    reads_as_stream: bool = False

    @property
    def as_streamed(self) -> AsStreamed:
        """How a batch gives the stream's rows: where the cut of the batches decides, they must be cut the same."""
        if self.impossible is not None or not self.placed_by:
            return AsStreamed.REFUSED
        return AsStreamed.BOUNDARIES if self.follows_result or self.unit.merging else AsStreamed.SUBTRACT

    def placed_in(self, range_us: tuple[int, int]) -> str:
        """Which rows of the result lie in a range; SQL of Spark.

        Args:
            range_us: from, and up to; microseconds since 1970.
        """
        placed = first_of(self.placed_by, in_spark)
        begin, end = (f"timestamp_micros({instant}L)" for instant in range_us)
        return f"{placed} >= {begin} AND {placed} < {end}"

    def closed(self, watermark_ms: int) -> str:
        """Which rows of the result the stream does not change any more once its watermark is there; SQL."""
        return self.unit.closed(self.placed_by, watermark_ms)

    def first_open_us(self, watermark_ms: int) -> int:
        """No row that is placed before this instant is open; microseconds since 1970."""
        return self.unit.first_open_us(watermark_ms)


@dataclass(frozen=True)
class Operator:
    """The stateful step of a pipeline (or none), as what it means to all others.

    Attributes:
        kind: names the transform that computes it: `spark_jobs/transforms/operators/<kind>.py`.
        pipeline: whose step it is.
        description: in a line.
        sides: what is read; a join has two.
        lateness: by what an event is late.
        horizon: how far past the newest event the watermark must move until every result is final.
        state: what Spark keeps.
        output: what is written.
        accounting: what must add up.
        recomputation: what batches compute again.
    """

    kind: str
    pipeline: Pipeline
    description: str
    sides: tuple[Side, ...]
    lateness: LatenessRule
    horizon: timedelta
    state: State
    output: Output
    accounting: Accounting
    recomputation: Recomputation


def step_of(pipeline: Pipeline, kind: type[Step]) -> Step:
    """The step of a kind; a pipeline has one at most of those that remember events."""
    return next(step for step in pipeline.steps if isinstance(step, kind))


def side_of(pipeline: Pipeline) -> Side:
    """What a pipeline reads, where it reads one."""
    delay = pipeline.watermark.engine_delay if pipeline.watermark else None
    return Side("", pipeline.source_tables, pipeline.event_time, delay, pipeline.row_steps)


def keeps_late(pipeline: Pipeline, lateness: LatenessRule) -> bool:
    """Whether late events have a table."""
    watermark = pipeline.watermark
    return not isinstance(lateness, Never) and watermark is not None and watermark.late is not Late.DROP


def output_of(
    pipeline: Pipeline,
    lateness: LatenessRule,
    *,
    keys: tuple[str, ...],
    row_keys: tuple[str, ...],
    content: tuple[str, ...],
    statistics: tuple[str, ...],
) -> Output:
    """What every kind writes in the same way; which columns its rows have, the kind says."""
    return Output(
        table=pipeline.sink.table,
        keys=keys,
        row_keys=row_keys,
        content=content,
        statistics=statistics,
        updates=pipeline.sink.mode == "update",
        withholds=any(isinstance(step, Where) for step in pipeline.result_steps),
        keeps_late=keeps_late(pipeline, lateness),
        sets_aside=any(isinstance(step, Enrich) and step.missing == "quarantine" for step in pipeline.row_steps),
    )


def accounting_of(output: Output, lateness: LatenessRule, *own: Invariant) -> Accounting:
    """What every kind accounts for in the same way: fates, and the tables beside the result.

    Args:
        output: what is written.
        lateness: by what an event is late.
        own: what the kind's result must hold; these come first.
    """
    beside_result: list[Invariant] = []
    if output.sets_aside:
        said = "set aside"
        aside = Invariant("quarantine", output.quarantine, "count(*)", ("quarantined",), said, of_epoch=True)
        beside_result.append(aside)
    if output.keeps_late:
        if lateness.in_windows:
            measure, terms, said = "sum(len(missed_windows))", ("pairs_late",), "pairs judged"
        else:
            measure, terms, said = "count(*)", ("late",), "events judged"
        beside_result.append(Invariant("late", output.late, measure, terms, said, of_epoch=True))
    return Accounting((BY_FATE,), (*own, *beside_result))


def setting_aside(operator: Operator) -> Operator:
    """The same of a pipeline of which a batch was skipped: it has a quarantine, whatever its steps are."""
    if operator.output.sets_aside:
        return operator
    output = replace(operator.output, sets_aside=True)
    accounting = operator.accounting
    aside = Invariant("quarantine", output.quarantine, "count(*)", ("quarantined",), "set aside", of_epoch=True)
    return replace(
        operator,
        output=output,
        accounting=replace(accounting, invariants=(*accounting.invariants, aside)),
    )


def rows_written(output: Output, said: str = "written") -> Invariant:
    """The result has the rows that the ledger counts."""
    return Invariant("rows", output.result, "count(*)", ("rows",), said, whole_table=True)
