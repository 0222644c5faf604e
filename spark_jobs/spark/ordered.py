"""The keyed operator in the JVM (`infra/java/io/tidemark/keyed`): events of a key in order of event time."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import StructType

from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.java import java_class
from spark_jobs.spec.errors import DefinitionError

WATERMARK = "spark.watermarkDelayMs"
"""By which Spark knows, in the metadata of a column, that the watermark is about it. Internal: pinned by a test."""

BUCKETS = 64
"""Into how many buckets keys are divided: Spark's own key. Frozen into each checkpoint."""

_EVENT, _OTHER, _MEASURES = "event", "other", "measures"


class Rules:
    """What becomes of the events of a key; each is an object of the JVM.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def latest(self, *, keep_us: int, both_ask: bool, own_alone: bool, other_alone: bool) -> Any:
        """Each event with the latest one of the other side at its time.

        Args:
            keep_us: how long an event is the latest one at most, in microseconds.
            both_ask: whether events of the other side give rows as well.
            own_alone: whether an event without one of the other side gives a row, too.
            other_alone: whether one of the other side without an event does.
        """
        return self._named("Latest")(keep_us, both_ask, own_alone, other_alone)

    def sliding(self, size_us: int, measures: "Measures") -> Any:
        """Each event with measures over those of its key in (t - size, t]."""
        return self._named("Sliding")(size_us, measures.java)

    def counting(self, size: int, measures: "Measures") -> Any:
        """Measures over each so many consecutive events, with the last of them."""
        return self._named("Counting")(size, measures.java)

    def running(self, measures: "Measures") -> Any:
        """Each event with measures over all of its key up to it."""
        return self._named("Running")(measures.java)

    def _named(self, rule: str) -> Any:
        return java_class(self._spark, f"io.tidemark.keyed.{rule}")


class Measures:
    """SQL aggregates over events, taken apart so that an operator of its own can compute them.

    Args:
        events: which they are computed over.
        measures: column -> aggregate in Spark SQL.

    Attributes:
        java: of the JVM.

    Raises:
        DefinitionError: if one of them cannot be computed so.
    """

    def __init__(self, events: DataFrame, measures: Mapping[str, str]) -> None:
        self._spark, self._names = events.sparkSession, tuple(measures)
        aggregated = events.agg(*(F.expr(sql).alias(name) for name, sql in measures.items()))
        try:
            self.java = java_class(self._spark, "io.tidemark.keyed.Measures")(aggregated._jdf)
        except (IllegalArgumentException, Py4JJavaError) as error:
            raise DefinitionError(f"measures: {error}. Nothing was started or written.") from None

    @property
    def not_running(self) -> str | None:
        """The first function whose state cannot be kept from batch to batch; None: all can."""
        found: str | None = self.java.notRunning()
        return found

    @property
    def schema(self) -> StructType:
        """The columns that they give."""
        return _schema_of(self.java.schema())

    def now(self, total: Column) -> Column:
        """The struct of what they give, of what a state has of `Running`."""
        return ClassicColumn(self.java.now(total._jc))

    def over(self, rows: DataFrame, window: WindowSpec) -> DataFrame:
        """The rows with the measures over a window, by Spark's own window functions.

        Args:
            rows: the frame that the measures were made of, or one with further columns.
            window: of each row.
        """
        parts = [ClassicColumn(each).over(window) for each in self.java.aggregates()]
        with_parts = rows.select("*", *(part.alias(f"__part_{at}") for at, part in enumerate(parts)))
        results = [ClassicColumn(each) for each in self.java.results("__part_")]
        named = (result.alias(name) for name, result in zip(self._names, results, strict=True))
        return with_parts.select(*columns_of(rows.columns), *named)


class Packing:
    """Structs as binary values, in the layout of Spark's own rows.

    Args:
        rows: whose columns the struct has.
        names: of these columns.
    """

    def __init__(self, rows: DataFrame, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._codec = java_class(rows.sparkSession, "io.tidemark.keyed.Packed")
        self._schema = _java_schema(rows.sparkSession, rows.select(*columns_of(names)).schema)

    @property
    def packed(self) -> Column:
        """The struct of a row's columns as bytes."""
        return ClassicColumn(self._codec.packed(self._schema, F.struct(*columns_of(self._names))._jc))

    def unpacked(self, packed: Column) -> Column:
        """The struct of bytes; null where there are none."""
        return ClassicColumn(self._codec.unpacked(self._schema, packed._jc))


def unpacked_measures(spark: SparkSession, measures: Measures, packed: Column) -> Column:
    """The struct of what measures give, of bytes."""
    codec = java_class(spark, "io.tidemark.keyed.Packed")
    return ClassicColumn(codec.unpacked(measures.java.schema(), packed._jc))


def in_order(events: DataFrame, rule: Any) -> DataFrame:
    """What a rule gives for a stream: `event`, `other` and `measures`, each packed or null.

    Args:
        events: with `time_us` (which carries the watermark), `seq`, `side`, `event` and `key`, both packed.
        rule: made by `Rules`.
    """
    spark = events.sparkSession
    bucketed = events.select(
        "time_us", "seq", "side", _EVENT, "key", F.expr(f"pmod(hash(key), {BUCKETS})").alias("bucket")
    )
    operator = java_class(spark, "io.tidemark.keyed.OrderedEvents")
    return DataFrame(operator.of(bucketed._jdf, rule), spark)


def _java_schema(spark: SparkSession, schema: StructType) -> Any:
    return java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(schema.json())


def _schema_of(java: Any) -> StructType:
    return StructType.fromJson(json.loads(java.json()))
