"""A small lake of each form in which Tidemark has kept what it keeps: newer versions must read, and go on with, each.

`format-<n>.tar.gz` was written by the version that had this form. A change of a form adds one
(`lake/store/formats.py`): `python -m tests.archive` writes the newest; those before it are never written again.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.spec import Aggregate, Deduplicate, Join, Late, Pipeline, Sink, Table, TopN, Tumbling, Watermark, Where
from tests.support import lakes

NEWEST = 1
FOLDER = Path(__file__).parent

MINUTE = 60_000
START = 1_700_000_040_000
COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
PAYMENTS = {"k": pa.string(), "paid": pa.int64(), "u": lakes.TIMESTAMP}


def _pipeline(name: str, *steps: object, mode: str = "append", **more: object) -> Pipeline:
    fields = {"event_time": "t", "watermark": Watermark(delay="2 minutes"), **more}
    definition = Pipeline(
        name=name, source=Table("bronze.sales"), steps=steps, sink=Sink(f"gold.{name}", mode=mode), **fields
    )
    return lakes.one_file_a_batch(definition)


def pipelines() -> tuple[Pipeline, ...]:
    """One of each kind."""
    by_window = Aggregate(window=Tumbling("5 minutes"), by=("k",), measures={"units": "sum(v)"})
    payments = Table("bronze.payments")
    return (
        _pipeline("closed", Where("v > 0"), by_window),
        _pipeline(
            "live",
            by_window,
            TopN(2, order_by="units DESC"),
            mode="update",
            watermark=Watermark(delay="2 minutes", grace="1 minute", late=Late.UPDATE),
        ),
        _pipeline("total", Aggregate(measures={"n": "count(*)"}), mode="update", watermark=None, event_time=None),
        _pipeline("large", Where("v > 5"), watermark=None),
        _pipeline("firsts", Deduplicate("k", within="10 minutes")),
        _pipeline("paid", Join(payments, on=("k",), event_time="u", within="5 minutes", how="full")),
    )


def fill(lake: Lake, batch: int) -> None:
    """One more batch of the two source tables: new events, a duplicate, a late one."""
    sales = lakes.Bronze(lake, "bronze.sales", COLUMNS, "t", batch * 4)
    payments = lakes.Bronze(lake, "bronze.payments", PAYMENTS, "u", batch * 2)
    now = START + batch * 6 * MINUTE
    late = START - 10 * MINUTE if batch > 1 else now
    sales.append(
        [
            {"k": "a", "v": 1, "t": lakes.at(now)},
            {"k": "a", "v": 9, "t": lakes.at(now + MINUTE)},
            {"k": f"k{batch}", "v": -1, "t": lakes.at(now + 2 * MINUTE)},
            {"k": "b", "v": 7, "t": lakes.at(late)},
        ]
    )
    payments.append(
        [{"k": "a", "paid": 1, "u": lakes.at(now + MINUTE)}, {"k": "x", "paid": 2, "u": lakes.at(now + 2 * MINUTE)}]
    )


def path(form: int) -> Path:
    """The archive of a form."""
    return FOLDER / f"format-{form}.tar.gz"


def open_archive(form: int, folder: Path) -> Lake:
    """An archived lake, unpacked."""
    with tarfile.open(path(form)) as archive:
        # The first releases of Python 3.11 know no filters.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return Lake(str(folder / "lake"))


def write(spark: SparkSession, folder: Path) -> None:
    """Makes a lake with three batches of everything, and archives it as the newest form."""
    lake = Lake(str(folder / "lake")).ensure_exists()
    for batch in range(3):
        fill(lake, batch)
    for pipeline in pipelines():
        lakes.run(spark, lake, pipeline)
        lakes.assert_balanced(lake, pipeline)
    with tarfile.open(path(NEWEST), "w:gz") as archive:
        archive.add(folder / "lake", "lake", filter=lambda entry: None if entry.name.endswith(".crc") else entry)
