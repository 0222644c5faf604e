"""The two branches of a pipeline: what its step gives, and a narrow row of every event.

Spark's stateful operators drop late rows in silence. Above the narrow branch, each batch keeps the events that they
dropped, and counts all of them. Both branches lie over one source, so that it is read by one set of offsets.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan import windows
from spark_jobs.plan.columns import FATE, GAP, HEARTBEAT, INGEST_SEQ, KEY, SEQ, SOURCE, TIME
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.plan.operators import Operator
from spark_jobs.plan.verdicts import Never
from spark_jobs.spec import Pipeline
from spark_jobs.transforms.events import with_row_steps
from spark_jobs.transforms.operators import transform_of

_LEAST_LONG = -(2**63)


class Branches:
    """The frames of one pipeline.

    Args:
        plan: of the pipeline.
    """

    def __init__(self, plan: LogicalPlan) -> None:
        if plan.operator is None or not isinstance(plan.definition, Pipeline):
            raise TypeError(f"expected the plan of a pipeline, got that of `{plan.definition.name}`")
        self._plan = plan
        self._pipeline: Pipeline = plan.definition
        self.operator: Operator = plan.operator
        self.transform = transform_of(self.operator)

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
        if self.transform.one_branch:
            return union([self._with_account(self._steps(source), index) for index, source in enumerate(sources)])
        results = self.results(union([self._with_watermark(source) for source in sources]))
        narrow = union([self._narrow(source, index) for index, source in enumerate(sources)])
        return results.unionByName(narrow, allowMissingColumns=True)

    def results(self, events: DataFrame) -> DataFrame:
        """What the step gives for the events that go on; heartbeats only move the watermark."""
        passed = self._steps(events)
        goes_on = F.col(FATE).isNull() & ~F.col(HEARTBEAT)
        if (time := self._time) is not None:
            # An event without a time belongs to no window. Naming the time also keeps the filter above the watermark:
            # Spark pushes any other below it, and the rows that it removes would not move the watermark.
            # A comparison, because Spark would see through a mere test for null where the time cannot be null.
            never = F.col(time).isNull() | (F.unix_micros(time) < F.lit(_LEAST_LONG))
            if self._has_gaps:
                goes_on = goes_on & (F.col(GAP) > 0)
            goes_on = F.when(never, F.lit(False)).otherwise(goes_on)
        return self.transform.results(passed.where(goes_on).drop(FATE))

    @property
    def _time(self) -> str | None:
        """The column by which events are late; None where none is."""
        return None if isinstance(self.operator.verdict, Never) else self._pipeline.event_time

    @property
    def _has_gaps(self) -> bool:
        return self.operator.gap is not None

    def _steps(self, events: DataFrame) -> DataFrame:
        """The events with what the row steps add and say of them."""
        stepped = with_row_steps(events, self._pipeline.row_steps, only=~F.col(HEARTBEAT))
        if (session := self.operator.gap) is None:
            return stepped
        gap = F.when(F.col(FATE).isNull() & ~F.col(HEARTBEAT), F.expr(windows.gap_of_event(session)))
        return stepped.withColumn(GAP, gap)

    def _with_watermark(self, stream: DataFrame) -> DataFrame:
        if self._plan.delay_ms is None or self._pipeline.event_time is None:
            return stream
        return stream.withWatermark(self._pipeline.event_time, f"{self._plan.delay_ms} milliseconds")

    def _narrow(self, stream: DataFrame, index: int) -> DataFrame:
        events = self._with_account(self._steps(stream), index)
        key = [F.col(f"`{name}`") for name in self.operator.event_keys]
        # A hash passes over nulls: without their flags (null, a) and (a, null) would be one key.
        hashed = F.xxhash64(F.lit(0), *chain.from_iterable((F.isnull(column), column) for column in key))
        gap = [GAP] if self._has_gaps else []
        return events.select(TIME, SEQ, FATE, SOURCE, hashed.alias(KEY), *gap)

    def _with_account(self, events: DataFrame, index: int) -> DataFrame:
        time: Column = F.col(self._time) if self._time else F.lit(0).cast("timestamp")
        if self._has_gaps:
            time = F.when(F.col(GAP) > 0, time)
        return events.withColumns({TIME: time, SEQ: F.when(~F.col(HEARTBEAT), F.col(INGEST_SEQ)), SOURCE: F.lit(index)})


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """All of them, by the names of their columns."""
    return reduce(lambda left, right: left.unionByName(right), frames)
