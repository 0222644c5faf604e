"""What the late split, the ledger and exactly-once commits cost beside a plain PySpark query that drops late rows.

`make bench` runs both over the same bronze tables, in turns, each run in a process of its own, and prints medians of
three: wall time of the query, time of a batch, processor time, time from start to the first commit, peak memory of
driver and Python together. With small batches only the fixed cost of a batch is left; it is measured on a folder and on
MinIO. `--case dedup` and `--case join` measure these steps alone, in large batches (`queries.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from benchmarks.measuring import CACHE, Column, Figures, Watcher, compared, family, in_turns, medians, processor_seconds
from benchmarks.queries import CASES, FILES_A_BATCH, Case
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.settings import Settings
from spark_jobs.simulator import Disorder, bulk_sales
from spark_jobs.spark.session import build_session
from tests.support.minio import start_minio

SETTINGS = Settings(master="local[2]", shuffle_partitions=2, driver_memory="2g")
COLUMNS = (
    Column("wall s", "seconds"),
    Column("s a batch", "batch", digits=2),
    Column("CPU s", "processor"),
    Column("first commit s", "first_commit", ratio=False),
    Column("peak GB", "peak_gb", digits=2, ratio=False),
)
_ROWS = {"windows": 10_000_000, "dedup": 2_000_000, "join": 1_000_000}
# A day in ten batches, an event judged by the watermark of the batch before: to be late it comes hours late.
LATENESS = Disorder(
    disorder=0.2, late=0.005, late_after="6 hours", late_by="12 hours", duplicates=0, malformed=0, future=0
)


def prepare(case: str, rows: int, columns: int, rows_per_file: int) -> Path:
    """A lake whose bronze tables are made of the simulator's sales, one commit a file; made once.

    Args:
        case: what is measured.
        rows: how many events.
        columns: of a sale: product_id, quantity, unit_price, sold_at and others that no query reads. Bronze's own
            (`_event_id` and so on) come on top.
        rows_per_file: events of a commit.
    """
    root = CACHE / f"{case}-{rows}x{columns}x{rows_per_file}"
    if (root / "done").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    bulk_sales(
        out=str(root / "landing"),
        rows=rows,
        rows_per_file=rows_per_file,
        extra_columns=columns - 4,
        disorder=LATENESS,
        truth=False,
    )
    lake = Lake(str(root.absolute())).ensure_exists()
    spark = build_session(lake, settings=SETTINGS)
    before: DataFrame | None = None
    for number, path in enumerate(sorted((root / "landing" / "sales").glob("*.parquet"))):
        sales = spark.read.parquet(str(path)).withColumnRenamed("sale_id", "_event_id")
        for table, events in CASES[case].bronze(sales, sales.limit(0) if before is None else before).items():
            # Twice the size of a file apart: a table may have a few events more than the simulator's file.
            _append(events, lake.table_path(table), first=number * 2 * rows_per_file)
        before = sales
    spark.stop()
    shutil.rmtree(root / "landing")
    (root / "done").touch()
    return root


def _append(events: DataFrame, path: str, *, first: int) -> None:
    """A commit of one file to a bronze table; its events are numbered from the first on."""
    time_column = next(name for name, kind in events.dtypes if kind == "timestamp")
    position = F.monotonically_increasing_id()
    (
        events.coalesce(1)
        .withColumns(
            {
                "_ingest_seq": F.lit(first) + position,
                "_ingest_time": F.current_timestamp(),
                "_source": F.struct(
                    F.lit("bench").alias("name"), F.lit(None).cast("int").alias("partition"), position.alias("position")
                ),
                "_heartbeat": F.lit(False),
            }
        )
        .write.format("delta")
        .mode("append")
        .option("delta.dataSkippingStatsColumns", f"{time_column},_ingest_seq")
        .save(path)
    )


def put_bronze(lake: Lake, root: Path) -> None:
    """Gives a lake the bronze table: a link in a folder, a copy on S3."""
    if not lake.on_s3:
        (Path(lake.uri) / "bronze").symlink_to((root / "bronze").absolute())
        return
    for path in sorted(path for path in (root / "bronze").rglob("*") if path.is_file()):
        lake.store.put(str(path.relative_to(root)), path.read_bytes())


def start_tidemark(spark: SparkSession, lake: Lake, case: Case) -> StreamingQuery:
    """The pipeline as a user would run it."""
    return PipelineQuery(spark, lake, case.definition).start(until_caught_up=True)


def start_plain(spark: SparkSession, lake: Lake, case: Case) -> StreamingQuery:
    """The same query in plain PySpark: late rows are dropped, Delta's own streaming sink."""
    reader = spark.readStream.format("delta").option("startingVersion", 0).option("maxFilesPerTrigger", FILES_A_BATCH)
    names = [table.name for table in case.definition.tables]
    result = case.plain({name: reader.load(lake.table_path(name)) for name in names})
    return (
        result.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", lake.path("_checkpoints", "plain"))
        .trigger(availableNow=True)
        .start(lake.table_path("gold.plain"))
    )


def measure_one(engine: str, case: Case, root: Path, lake: Lake) -> Figures:
    """One run in this process: seconds and gigabytes."""
    put_bronze(lake, root)
    began = time.monotonic()
    spark = build_session(lake, settings=SETTINGS)
    started = time.monotonic()
    log = f"gold/{'bench' if engine == 'tidemark' else 'plain'}/_delta_log/"
    # Tidemark creates its tables in a commit of its own before the first batch.
    commits_without_rows = 1 if engine == "tidemark" else 0
    with Watcher(family, reached=lambda: _count(lake, log, ".json") > commits_without_rows, since=began) as watcher:
        used = processor_seconds()
        query = (start_tidemark if engine == "tidemark" else start_plain)(spark, lake, case)
        query.awaitTermination()
        seconds, used = time.monotonic() - started, processor_seconds() - used
    # The first three batches still compile code.
    warm = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress][3:]
    figures = {
        "seconds": seconds,
        "batch": statistics.median(warm),
        "processor": used,
        "first_commit": watcher.reached_s,
        "peak_gb": watcher.peak_gb,
    }
    if engine == "tidemark":
        totals = Totals.of(row for _, row in ledger_rows(lake, "gold.bench", "bench", 1))
        figures |= {"read": totals["read"], "late": totals["late"]}
    spark.stop()
    return figures


def _count(lake: Lake, prefix: str, suffix: str) -> int:
    return sum(item["path"].endswith(suffix) for item in lake.store.list(prefix).collect())


def compare(
    rows: int,
    columns: int,
    rows_per_file: int,
    repeats: int,
    out: Console,
    *,
    on: str = "folder",
    case: str = "windows",
) -> None:
    """Both engines in turns, each run in a fresh process; prints medians and their ratio."""
    root = prepare(case, rows, columns, rows_per_file)

    def run(engine: str, folder: Path) -> Figures:
        lake = str(folder) if on == "folder" else f"s3a://bench/{uuid4().hex}"
        program = [sys.executable, "-m", "benchmarks.late_split", "--one", engine, "--case", case]
        done = subprocess.run(
            [*program, "--root", str(root), "--lake", lake], stdout=subprocess.PIPE, text=True, check=True
        )
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    found = in_turns(("plain", "tidemark"), repeats, run)
    title = f"{case}: {rows:,} sales of {columns} columns, {FILES_A_BATCH * rows_per_file:,} a batch, on {on}"
    out.print(compared(title, COLUMNS, found, {"ratio": ("tidemark", "plain")}))
    median = medians(found["tidemark"])
    out.print(f"late: {median['late']:,.0f} of {median['read']:,.0f} events, all kept\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=("plain", "tidemark"))
    parser.add_argument("--case", choices=tuple(CASES), help="this alone, in large batches")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--lake")
    parser.add_argument("--rows", type=int, help="default: 10, 2 and 1 million")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--columns", type=int, nargs="*", default=[4, 50])
    parser.add_argument("--small", choices=("folder", "minio"), nargs="*", default=["folder", "minio"])
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one, CASES[options.case], options.root, Lake(options.lake))))
        return
    out = Console(width=110)
    for case in [options.case] if options.case else CASES:
        rows = options.rows or _ROWS[case]
        for columns in options.columns if case == "windows" else [4]:
            compare(rows, columns, rows // 20, options.repeats, out, case=case)
    for on in [] if options.case else options.small:
        with tempfile.TemporaryDirectory() as folder, _store(on, Path(folder)):
            compare(20_000, 4, 500, options.repeats, out, on=on)


@contextmanager
def _store(kind: str, root: Path) -> Iterator[None]:
    """A MinIO server, where one is wanted, and the environment that leads to it."""
    if kind == "folder":
        yield
        return
    with start_minio(root) as minio:
        minio.create_bucket("bench")
        with patch.dict(os.environ, minio.environment()):
            yield


if __name__ == "__main__":
    main()
