"""Small definitions, ledgers and tables for the tests: each argument replaces one part of something valid."""

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.commit_records.stamps import Stamp
from spark_jobs.spec import Aggregate, Files, Ingest, Pipeline, Results, Sink, Table, Tumbling, Watermark


def an_ingest(**changes):
    parts = {
        "name": "ingest_sales",
        "source": Files("landing/sales"),
        "columns": {"sale_id": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP"},
        "event_time": "sold_at",
        "sink": Sink("bronze.sales"),
    }
    return Ingest(**(parts | changes))


def an_ingest_of_sales(**changes):
    """One that gives `a_pipeline` the columns that it reads."""
    columns = {"sale_id": "STRING", "product_id": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP"}
    return an_ingest(**({"columns": columns} | changes))


def a_reader_of_results(revised="read", *, table="gold.hourly_sales", name="ingest_hourly", **options):
    """An ingest that reads the result of `a_pipeline`."""
    columns = {"window_start": "TIMESTAMP", "product_id": "STRING", "units": "BIGINT", "change_weight": "INT"}
    return Ingest(
        name=name,
        source=Results(table, revised=revised, **options),
        columns=columns,
        event_time="window_start",
        sink=Sink(f"bronze.{name.removeprefix('ingest_')}"),
    )


def an_aggregate(**changes):
    parts = {"window": Tumbling("1 hour"), "by": ("product_id",), "measures": {"units": "sum(quantity)"}}
    return Aggregate(**(parts | changes))


def a_pipeline(**changes):
    parts = {
        "name": "hourly_sales",
        "source": Table("bronze.sales"),
        "event_time": "sold_at",
        "watermark": Watermark(delay="2 minutes"),
        "steps": (an_aggregate(),),
        "sink": Sink("gold.hourly_sales"),
    }
    return Pipeline(**(parts | changes))


def a_running_total(**changes):
    parts = {
        "event_time": None,
        "watermark": None,
        "steps": (an_aggregate(window=None),),
        "sink": Sink("gold.totals", mode="update"),
    }
    return a_pipeline(**(parts | changes))


def a_batch(read=0, **figures):
    """A ledger row of an append pipeline; by default all that was read is on time, in one window each, in a result."""
    terms = {"read": read, "on_time": read, "pairs": read, "pairs_result": read, "state_rows": 0}
    fields = {name: figures.pop(name) for name in list(figures) if name in LedgerEntry.model_fields}
    terms = {name: count for name, count in (terms | figures).items() if count is not None}
    return LedgerEntry(**({"started_ms": 0, "terms": terms} | fields))


def a_stamp(batch_id=0, **fields):
    known = {"pipeline": "hourly_sales", "epoch": 1, "batch_id": batch_id, "role": "result", "rows": 0}
    return Stamp(**(known | fields))


def a_lake(folder: Path) -> Lake:
    return Lake.parse(str(folder)).ensure_exists()


def write(lake: Lake, table: str, columns: dict | pa.Table, *, stamp: Stamp | str | None = None, mode="append"):
    """One commit of a real Delta table, stamped like Spark's commits are: under `userMetadata`."""
    rows = columns if isinstance(columns, pa.Table) else pa.table(columns)
    text = stamp.encode() if isinstance(stamp, Stamp) else stamp
    properties = CommitProperties(custom_metadata={"userMetadata": text}) if text else None
    write_deltalake(lake.table_uri(table), rows, mode=mode, commit_properties=properties)
