"""What is measured: pipelines of Tidemark, each beside the query that one would write in plain PySpark instead.

The plain query gives the same rows but drops late ones, counts nothing, and writes with Delta's own streaming sink. It
leaves out what Tidemark says of a row's revision and, of windows, how many events are in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.spec import Aggregate, Deduplicate, Join, Pipeline, Sink, Table, Tumbling, Watermark
from spark_jobs.spec.steps import StepSpec

FILES_A_BATCH = 2
_EVENT = ("_event_id", "_ingest_seq", "_ingest_time")
_SALE = {"sale_id": "_event_id", **{name: name for name in ("product_id", "quantity", "unit_price", "sold_at")}}

Streams = Mapping[str, DataFrame]
"""Source table -> its stream."""


@dataclass(frozen=True)
class Case:
    """One query, twice.

    Attributes:
        definition: Tidemark's.
        plain: the same in plain PySpark.
        bronze: source table -> its rows, made of a file of the simulator's sales and the file before; these have all
            columns of an event, `sale_id` as `_event_id`.
    """

    definition: Pipeline
    plain: Callable[[Streams], DataFrame]
    bronze: Callable[[DataFrame, DataFrame], Mapping[str, DataFrame]]


def _pipeline(step: StepSpec, *, delay: str, select: Mapping[str, str] | None = None) -> Pipeline:
    return Pipeline(
        name="bench",
        source=Table("bronze.sales", select=select, max_files_per_trigger=FILES_A_BATCH),
        event_time="sold_at",
        watermark=Watermark(delay=delay),
        steps=(step,),
        sink=Sink("gold.bench"),
    )


def _sales_alone(sales: DataFrame, before: DataFrame) -> Mapping[str, DataFrame]:
    return {"bronze.sales": sales}


# --- units and revenue per product and ten minutes ---


def _plain_windows(streams: Streams) -> DataFrame:
    return (
        streams["bronze.sales"]
        .withWatermark("sold_at", "2 minutes")
        .groupBy(F.window("sold_at", "10 minutes"), "product_id")
        .agg(F.expr("sum(quantity)").alias("units"), F.expr("sum(quantity * unit_price)").alias("revenue"))
    )


_WINDOWS = Aggregate(
    window=Tumbling("10 minutes"),
    by=("product_id",),
    measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)"},
)

# --- the first event of each id ---


def _with_copies(sales: DataFrame, before: DataFrame) -> Mapping[str, DataFrame]:
    """One event of fifty comes again with the next file."""
    return {"bronze.sales": sales.union(before.where("pmod(xxhash64(_event_id), 50) = 0"))}


def _plain_first(streams: Streams) -> DataFrame:
    first = streams["bronze.sales"].withWatermark("sold_at", "10 minutes").dropDuplicatesWithinWatermark(["_event_id"])
    return first.drop("_source", "_heartbeat")


# --- sales with their payments within the hour ---


def _with_payments(sales: DataFrame, before: DataFrame) -> Mapping[str, DataFrame]:
    """Nine of ten sales are paid within five minutes; a payment comes in the file of its sale."""
    paid = sales.where("pmod(xxhash64(_event_id), 10) > 0").selectExpr(
        "_event_id AS sale_id",
        "quantity * unit_price AS paid",
        "timestamp_millis(unix_millis(sold_at) + pmod(xxhash64(_event_id, 1), 300000)) AS paid_at",
        "concat('p', _event_id) AS _event_id",
    )
    return {"bronze.sales": sales, "bronze.payments": paid}


def _plain_join(streams: Streams) -> DataFrame:
    sales = streams["bronze.sales"].select(*(F.col(old).alias(new) for new, old in _SALE.items()), *_EVENT)
    payments = streams["bronze.payments"].select(
        F.col("sale_id").alias("paid_sale"),
        "paid",
        "paid_at",
        *(F.col(name).alias(f"_other{name}") for name in _EVENT),
    )
    near = "sale_id = paid_sale AND paid_at >= sold_at AND paid_at <= sold_at + INTERVAL 1 HOUR"
    joined = sales.withWatermark("sold_at", "2 minutes").join(
        payments.withWatermark("paid_at", "2 minutes"), F.expr(near), "full_outer"
    )
    side = F.when(F.col("paid_sale").isNull(), "left").when(F.col("sale_id").isNull(), "right").otherwise("both")
    return joined.withColumns({"sale_id": F.coalesce("sale_id", "paid_sale"), "_side": side}).drop("paid_sale")


_PAYMENTS = Table(
    "bronze.payments",
    select={"sale_id": "sale_id", "paid": "paid", "paid_at": "paid_at"},
    max_files_per_trigger=FILES_A_BATCH,
)
_PAID = Join(_PAYMENTS, on=("sale_id",), event_time="paid_at", within="1 hour", how="full")

CASES = {
    "windows": Case(_pipeline(_WINDOWS, delay="2 minutes"), _plain_windows, _sales_alone),
    "dedup": Case(
        _pipeline(Deduplicate("_event_id", within="10 minutes"), delay="10 minutes"), _plain_first, _with_copies
    ),
    "join": Case(_pipeline(_PAID, delay="2 minutes", select=_SALE), _plain_join, _with_payments),
}
