"""The two branches of a pipeline: what its step gives, and a narrow row of every event.

Spark's stateful operators drop late rows in silence. Above the narrow branch, each batch keeps the events that they
dropped, and counts all of them. Both branches lie over one source, so that it is read by one set of offsets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import FATE, GAP, HEARTBEAT, INGEST_SEQ, JUDGED, KEY, SEQ, SOURCE, TIME
from spark_jobs.plan.lateness import LatenessRule, Never
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.plan.operators import Operator, Side
from spark_jobs.plan.quarantine import NO_SUCH_KEY, SKIPPED
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec import Enrich, Pipeline
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import in_spark
from spark_jobs.transforms.event_times import believed
from spark_jobs.transforms.events import HISTORY, QUARANTINED, with_row_steps
from spark_jobs.transforms.operators import transform_of

_LEAST_LONG, _GREATEST_LONG = -(2**63), 2**63 - 1


class Branches:
    """The frames of one pipeline.

    Args:
        plan: of the pipeline.
        lookups: table -> its rows, for `Enrich`.
        cut_us: windows that end at or before it are passed over, as they are computed in batch; None: none is.
        to_compare: whether results say, too, which values their measures may have: see `plan/comparing.py`.
        skips: whether all events are set aside, unseen by any step; the state goes on without them.
    """

    def __init__(
        self,
        plan: LogicalPlan,
        lookups: Mapping[str, DataFrame] | None = None,
        *,
        cut_us: int | None = None,
        to_compare: bool = False,
        skips: bool = False,
    ) -> None:
        if plan.operator is None or not isinstance(plan.definition, Pipeline):
            raise TypeError(f"expected the plan of a pipeline, got that of `{plan.definition.name}`")
        self._plan = plan
        self._max_future = plan.definition.max_future
        self._lookups = lookups or {}
        self.operator: Operator = plan.operator
        self.transform = transform_of(self.operator, to_compare=to_compare)
        self.cut_us, self.skips = cut_us, skips
        self.lateness: LatenessRule = (
            self.operator.lateness if cut_us is None else self.operator.lateness.beyond(cut_us)
        )

    def beyond(self, cut_us: int | None) -> "Branches":
        """The same, of windows that end after a cut; None: of all."""
        return self if cut_us == self.cut_us else Branches(self._plan, self._lookups, cut_us=cut_us, skips=self.skips)

    @property
    def reason(self) -> str:
        """Why an event is set aside."""
        return SKIPPED if self.skips else NO_SUCH_KEY

    @property
    def detail(self) -> str:
        """More of it."""
        if self.skips:
            return "its batch could not be computed, and a person had it skipped"
        names = ", ".join(step.table for step in self._plan.lookups if step.missing == "quarantine")
        return f"{names} has no row with its key"

    @property
    def narrow_rows(self) -> str:
        """Which rows account for an event; SQL."""
        return f"{SOURCE} IS NOT NULL"

    @property
    def result_rows(self) -> str:
        """Which rows the step has given; SQL."""
        if self.transform.one_branch:
            return f"({SEQ} IS NOT NULL AND {FATE} IS NULL)"
        return f"{SOURCE} IS NULL"

    def both(self, sources: Sequence[DataFrame]) -> DataFrame:
        """Results and narrow rows of a stream.

        Args:
            sources: what is read, one frame for each table of the plan.
        """
        sides = self._sides_of(sources)
        if self.skips:
            return self._passed_over(sides)
        if self.transform.one_branch:
            return union([self._with_account(self._steps(source, side), side, i) for i, (side, source) in sides])
        results = self._results([(side, self._with_watermark(source, side)) for _, (side, source) in sides])
        narrow = union([self._narrow(source, side, index) for index, (side, source) in sides])
        return results.unionByName(narrow, allowMissingColumns=True)

    def _passed_over(self, sides: Sequence[tuple[int, tuple[Side, DataFrame]]]) -> DataFrame:
        """What the state gives without the events, and a narrow row of each of them, set aside."""
        if self.transform.one_branch:
            # Without a state nothing has to run but what accounts for the events.
            return union([self._unseen(source, side, index) for index, (side, source) in sides])
        streams = [(side, self._with_watermark(source, side)) for _, (side, source) in sides]
        results = self._results([(side, _without_events(stream, side)) for side, stream in streams])
        narrow = union(
            [self._narrow_columns(self._set_aside(source, side, index), ()) for index, (side, source) in sides]
        )
        return results.unionByName(narrow, allowMissingColumns=True)

    def _set_aside(self, events: DataFrame, side: Side, index: int) -> DataFrame:
        fate = F.when(~F.col(HEARTBEAT), F.lit(QUARANTINED)).cast("tinyint")
        return self._with_account(events.withColumns({FATE: fate, GAP: F.lit(None).cast("bigint")}), side, index)

    def _unseen(self, events: DataFrame, side: Side, index: int) -> DataFrame:
        """The events, set aside, with the columns that the steps would have given them."""
        usual = self._with_account(self._steps(events, side), side, index).schema
        aside = self._set_aside(events, side, index)
        given = {field.name: field.dataType for field in aside.schema}
        return aside.select(
            *(
                column(each.name)
                if given.get(each.name) == each.dataType
                else F.lit(None).cast(each.dataType).alias(each.name)
                for each in usual
            )
        )

    def results(self, sources: Sequence[DataFrame]) -> DataFrame:
        """What the step gives for the events that go on.

        Args:
            sources: what is read, one frame for each table of the plan.
        """
        return self._results([each for _, each in self._sides_of(sources)])

    def kept(self, sources: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
        """The events of each side as the state keeps them packed; none where it packs none.

        Args:
            sources: as in `results`.
        """
        frames: dict[str, list[DataFrame]] = {side.name: [] for side in self._plan.sides}
        for _, (side, source) in self._sides_of(sources):
            frames[side.name].append(source)
        return self.transform.kept(*(self._going_on(union(frames[side.name]), side) for side in self._plan.sides))

    def _results(self, sources: Iterable[tuple[Side, DataFrame]]) -> DataFrame:
        frames: dict[str, list[DataFrame]] = {side.name: [] for side in self._plan.sides}
        for side, source in sources:
            frames[side.name].append(source)
        return self.transform.results(*(self._going_on(union(frames[side.name]), side) for side in self._plan.sides))

    def looked_up(self, sources: Sequence[DataFrame]) -> Iterator[tuple[Enrich, DataFrame, DataFrame]]:
        """Each `Enrich` with the rows that meet it and those of its table.

        Args:
            sources: as in `results`.
        """
        for _, (side, source) in self._sides_of(sources):
            for number, step in enumerate(side.steps):
                if isinstance(step, Enrich):
                    before = with_row_steps(source, side.steps[:number], lookups=self._lookups)
                    yield step, before, self._lookups[step.table]

    def _sides_of(self, sources: Sequence[DataFrame]) -> list[tuple[int, tuple[Side, DataFrame]]]:
        """Each source with its number and its side; its events have no time where theirs is not believed."""
        sides = [side for side in self._plan.sides for _ in side.tables]
        timed = [self._timed(source, side) for side, source in zip(sides, sources, strict=True)]
        return list(enumerate(zip(sides, timed, strict=True)))

    def _timed(self, source: DataFrame, side: Side) -> DataFrame:
        if side.event_time is None or (self._time(side) is None and side.delay is None):
            return source
        # As the source writes the name: a column that is replaced is called as in the replacement.
        folded = side.event_time.casefold()
        name = next((each for each in source.columns if each.casefold() == folded), side.event_time)
        return source.withColumn(name, believed(column(name), self._max_future))

    def _going_on(self, events: DataFrame, side: Side) -> DataFrame:
        """The events that meet the step; heartbeats only move the watermark."""
        passed = self._steps(events, side)
        goes_on = F.col(FATE).isNull() & ~F.col(HEARTBEAT)
        if (time := self._time(side)) is not None:
            # An event without a time belongs to no window. Naming the time also keeps the filter above the watermark:
            # Spark pushes any other below it, and the rows that it removes would not move the watermark. A choice
            # between two conditions Spark would take apart, and push down the one without the time.
            if self._has_gaps:
                goes_on = goes_on & (F.col(GAP) > 0)
            goes_on = F.unix_micros(column(time)) >= F.when(goes_on, F.lit(_LEAST_LONG)).otherwise(
                F.lit(_GREATEST_LONG)
            )
        events = passed.where(goes_on).drop(FATE)
        if self.cut_us is None:
            return events
        # As if a watermark had closed these windows before.
        return events.withColumn(JUDGED, F.timestamp_micros(F.lit(self.cut_us)))

    def _time(self, side: Side) -> str | None:
        """The column by which events are late; None where none is."""
        return None if isinstance(self.operator.lateness, Never) else side.event_time

    @property
    def _has_gaps(self) -> bool:
        return self.operator.state.gap_of_event is not None

    def _steps(self, events: DataFrame, side: Side) -> DataFrame:
        """The events with what the row steps add and say of them."""
        stepped = with_row_steps(events, side.steps, only=~F.col(HEARTBEAT), lookups=self._lookups)
        if (gap_us := self.operator.state.gap_of_event) is None:
            return stepped
        gap = F.when(F.col(FATE).isNull() & ~F.col(HEARTBEAT), F.expr(gap_us))
        return stepped.withColumn(GAP, gap)

    def _with_watermark(self, stream: DataFrame, side: Side) -> DataFrame:
        if side.delay is None or side.event_time is None:
            return stream
        return stream.withWatermark(in_spark(side.event_time), f"{duration_ms(side.delay)} milliseconds")

    def _narrow(self, stream: DataFrame, side: Side, index: int) -> DataFrame:
        events = self._with_account(self._steps(stream, side), side, index)
        if (history := self.lateness.history) is not None:
            passed_over = F.when(F.col(SEQ).isNotNull() & F.expr(history), F.lit(HISTORY).cast("tinyint"))
            events = events.withColumn(FATE, F.coalesce(F.col(FATE), passed_over))
        # Who counts events asks of no group, and need not read its key a second time.
        keys = self.operator.state.event_keys if self.operator.lateness.counts_groups else ()
        return self._narrow_columns(events, keys)

    def _narrow_columns(self, events: DataFrame, keys: Sequence[str]) -> DataFrame:
        key = columns_of(keys)
        # A hash passes over nulls: without their flags (null, a) and (a, null) would be one key.
        hashed = F.xxhash64(F.lit(0), *chain.from_iterable((F.isnull(part), part) for part in key))
        gap = [GAP] if self._has_gaps else []
        return events.select(TIME, SEQ, FATE, SOURCE, hashed.alias(KEY), *gap)

    def _with_account(self, events: DataFrame, side: Side, index: int) -> DataFrame:
        name = self._time(side)
        time: Column = column(name) if name else F.lit(0).cast("timestamp")
        if self._has_gaps:
            time = F.when(F.col(GAP) > 0, time)
        return events.withColumns({TIME: time, SEQ: F.when(~F.col(HEARTBEAT), F.col(INGEST_SEQ)), SOURCE: F.lit(index)})


def _without_events(stream: DataFrame, side: Side) -> DataFrame:
    """Heartbeats alone, of a stream whose watermark all rows have moved."""
    if side.event_time is None or side.delay is None:
        return stream.where(HEARTBEAT)
    # As in `_going_on`: what names the time is asked above the watermark.
    kept = F.when(F.col(HEARTBEAT), F.lit(_LEAST_LONG)).otherwise(F.lit(_GREATEST_LONG))
    return stream.where(F.unix_micros(column(side.event_time)) >= kept)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """All of them, by the names of their columns."""
    return reduce(lambda left, right: left.unionByName(right), frames)
