"""Two streams, put together by key and time."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import EVENT_COLUMNS, EVENT_ID, HEARTBEAT, INGEST_SEQ, OTHER, PLACE, SIDE, SOURCE_TABLE
from spark_jobs.plan.operators import step_of
from spark_jobs.plan.operators.join import BOTH, LEFT, RIGHT
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec import Join
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import in_spark
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.base import Transform

_KEY, _ON = "__other_key_", "__on"


class JoinedTransform(Transform):
    """Spark's own join of two streams."""

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each match, and for each event without one where the join is an outer one."""
        left, right = sides
        step = step_of(self.operator.pipeline, Join)
        on = step.on
        left = left.drop(PLACE, HEARTBEAT).withColumn(_ON, self._key(0))
        right = right.drop(PLACE, HEARTBEAT).withColumn(f"{OTHER}{_ON}", self._key(1))
        renamed = {name: f"{OTHER}{name}" for name in EVENT_COLUMNS} | {name: f"{_KEY}{name}" for name in on}
        right = right.withColumnsRenamed(renamed)
        after_ms, before_ms = duration_ms(step.within) if step.within else 0, duration_ms(step.before)
        time, theirs_time = in_spark(str(self.operator.pipeline.event_time)), in_spark(step.event_time)
        equal = [f"{_ON} = {OTHER}{_ON}"]
        near = [
            f"{theirs_time} >= {time} - INTERVAL '{before_ms / 1000:.3f}' SECOND",
            f"{theirs_time} <= {time} + INTERVAL '{after_ms / 1000:.3f}' SECOND",
        ]
        how = "full_outer" if step.how == "full" else step.how
        joined = left.join(right, F.expr(" AND ".join(equal + near)), how)
        keys = [F.coalesce(column(name), column(f"{_KEY}{name}")).alias(name) for name in on]
        others = [name for name in left.columns if name not in (*on, *EVENT_COLUMNS, SOURCE_TABLE, _ON)]
        theirs = [name for name in right.columns if not name.startswith((_KEY, OTHER))]
        side = F.when(F.col(f"{OTHER}{EVENT_ID}").isNull(), LEFT).when(F.col(EVENT_ID).isNull(), RIGHT).otherwise(BOTH)
        columns = [*keys, *columns_of((*others, *theirs)), side.alias(SIDE)]
        columns += [F.col(name) for name in (*EVENT_COLUMNS, *(f"{OTHER}{name}" for name in EVENT_COLUMNS))]
        columns += [F.col(name) for name in left.columns if name == SOURCE_TABLE]
        return with_row_steps(joined.select(*columns), self.operator.pipeline.result_steps, removed=WITHHELD)

    def _key(self, side: int) -> Column:
        """The key as one value that is never null, with a number that two sides share only where none of it is null.

        Spark's state takes nulls for equal. And where a key could be null, Spark would remove such rows below the
        watermark, which heartbeats, and events without a key, would then not move.
        """
        null = F.expr(" OR ".join(f"{in_spark(name)} IS NULL" for name in self.operator.state.event_keys))
        own = F.when(null, F.coalesce(F.col(INGEST_SEQ), F.lit(0).cast("bigint")) * 2 + side)
        return F.struct(*columns_of(self.operator.state.event_keys), own.otherwise(F.lit(-1).cast("bigint")))
