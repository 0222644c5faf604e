"""What the late split, the ledger and exactly-once commits cost beside a plain PySpark query that drops late rows.

`make bench` runs both over the same bronze table, in turns, each run in a process of its own, and prints medians of
three: wall time of the query, time to the first commit, time of a batch, peak memory of driver and Python together.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table as TextTable

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.engine.session import build_session
from spark_jobs.lake import Lake
from spark_jobs.lake.history import ledger_rows
from spark_jobs.lake.ledger import Totals
from spark_jobs.lake.settings import Settings
from spark_jobs.simulator import Disorder, bulk_sales
from spark_jobs.spec import Aggregate, Pipeline, Sink, Table, Tumbling, Watermark

CACHE = Path(".cache/bench")
SETTINGS = Settings(master="local[2]", shuffle_partitions=2, driver_memory="2g")
FILES_A_BATCH = 2
# A day in ten batches: late events must come later than two batches to be late by the watermark of the one before.
LATENESS = Disorder(
    disorder=0.2, late=0.005, late_after="6 hours", late_by="12 hours", duplicates=0, malformed=0, future=0
)


def definition() -> Pipeline:
    """Units and revenue per product and ten minutes."""
    return Pipeline(
        name="bench",
        source=Table("bronze.sales", max_files_per_trigger=FILES_A_BATCH),
        event_time="sold_at",
        watermark=Watermark(delay="2 minutes"),
        steps=(
            Aggregate(
                window=Tumbling("10 minutes"),
                by=("product_id",),
                measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)"},
            ),
        ),
        sink=Sink("gold.bench"),
    )


def prepare(rows: int, columns: int, rows_per_file: int) -> Path:
    """A lake whose bronze table holds the simulator's sales, one commit a file; made once."""
    root = CACHE / f"{rows}x{columns}x{rows_per_file}"
    if (root / "done").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    bulk_sales(
        out=str(root / "landing"),
        rows=rows,
        rows_per_file=rows_per_file,
        extra_columns=max(0, columns - 5),
        truth=False,
    )
    spark = build_session(Lake(str(root.absolute())), settings=SETTINGS)
    seq = 0
    for path in sorted((root / "landing" / "sales").glob("*.parquet")):
        sales = spark.read.parquet(str(path)).coalesce(1)
        (
            sales.withColumns(
                {
                    "_event_id": F.col("sale_id"),
                    "_ingest_seq": F.lit(seq) + F.monotonically_increasing_id(),
                    "_ingest_time": F.current_timestamp(),
                    "_source": F.struct(
                        F.lit(path.name).alias("name"),
                        F.lit(None).cast("int").alias("partition"),
                        F.monotonically_increasing_id().alias("position"),
                    ),
                    "_heartbeat": F.lit(False),
                }
            )
            .write.format("delta")
            .mode("append")
            .option("delta.dataSkippingStatsColumns", "sold_at,_ingest_seq")
            .save(str((root / "bronze" / "sales").absolute()))
        )
        seq += rows_per_file
    spark.stop()
    shutil.rmtree(root / "landing")
    (root / "done").touch()
    return root


def run_tidemark(spark: SparkSession, lake: Lake) -> None:
    """The pipeline as a user would run it."""
    PipelineQuery(spark, lake, definition()).start(until_caught_up=True).awaitTermination()


def run_plain(spark: SparkSession, lake: Lake) -> None:
    """The same query in plain PySpark: late rows are dropped, Delta's own streaming sink."""
    sales = (
        spark.readStream.format("delta")
        .option("startingVersion", 0)
        .option("maxFilesPerTrigger", FILES_A_BATCH)
        .load(lake.table_path("bronze.sales"))
    )
    result = (
        sales.withWatermark("sold_at", "2 minutes")
        .groupBy(F.window("sold_at", "10 minutes"), "product_id")
        .agg(F.expr("sum(quantity)").alias("units"), F.expr("sum(quantity * unit_price)").alias("revenue"))
    )
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "plain")
    (
        result.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", lake.path("_checkpoints", "plain"))
        .trigger(availableNow=True)
        .start(lake.table_path("gold.plain"))
        .awaitTermination()
    )


def measure_one(engine: str, root: Path) -> dict[str, float]:
    """One run in this process: seconds and bytes."""
    lake = Lake(tempfile.mkdtemp(prefix="tidemark-bench-"))
    (Path(lake.uri) / "bronze").symlink_to((root / "bronze").absolute())
    began = time.monotonic()
    spark = build_session(lake, settings=SETTINGS)
    started = time.monotonic()
    target = Path(lake.uri) / "gold" / ("bench" if engine == "tidemark" else "plain") / "_delta_log"
    peak, first, over = [0], [0.0], threading.Event()

    def watch() -> None:
        me = psutil.Process()
        empty_until = 1 if engine == "tidemark" else 0
        while not over.wait(0.1):
            family = [me, *me.children(recursive=True)]
            peak[0] = max(peak[0], sum(_resident(process) for process in family))
            if not first[0] and target.exists() and len(list(target.glob("*.json"))) > empty_until:
                first[0] = time.monotonic() - began

    watcher = threading.Thread(target=watch)
    watcher.start()
    (run_tidemark if engine == "tidemark" else run_plain)(spark, lake)
    seconds = time.monotonic() - started
    over.set()
    watcher.join()
    batches = len(list((Path(lake.uri) / "_checkpoints").rglob("commits/[0-9]*")))
    figures = {"seconds": seconds, "first_commit": first[0], "batches": batches, "peak_gb": peak[0] / 1e9}
    if engine == "tidemark":
        totals = Totals.of(row for _, row in ledger_rows(lake, "gold.bench", "bench", 1))
        figures |= {"read": totals.read, "late": totals.late}
    spark.stop()
    shutil.rmtree(lake.uri)
    return figures


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def compare(rows: int, columns: int, rows_per_file: int, repeats: int, out: Console) -> None:
    """Both engines in turns, each run in a fresh process; prints medians and their ratio."""
    root = prepare(rows, columns, rows_per_file)
    found: dict[str, list[dict[str, float]]] = {"plain": [], "tidemark": []}
    for _ in range(repeats):
        for engine, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.late_split", "--one", engine, "--root", str(root)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    table = TextTable(title=f"{rows:,} events, {columns} columns, {FILES_A_BATCH * rows_per_file:,} a batch", box=None)
    for heading in ("", "wall s", "s a batch", "first commit s", "peak GB", "runs"):
        table.add_column(heading, justify="right")
    medians = {}
    for engine, runs in found.items():
        medians[engine] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        median = medians[engine]
        table.add_row(
            engine,
            f"{median['seconds']:.1f}",
            f"{median['seconds'] / median['batches']:.2f}",
            f"{median['first_commit']:.1f}",
            f"{median['peak_gb']:.2f}",
            " ".join(f"{run['seconds']:.1f}" for run in runs),
        )
    ratio = medians["tidemark"]["seconds"] / medians["plain"]["seconds"]
    table.add_row("ratio", f"{ratio:.2f}")
    out.print(table)
    out.print(f"late: {medians['tidemark']['late']:,.0f} of {medians['tidemark']['read']:,.0f} events, all kept")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=("plain", "tidemark"))
    parser.add_argument("--root", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--columns", type=int, nargs="*", default=[5, 50])
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one, options.root)))
        return
    out = Console(width=110)
    for columns in options.columns:
        compare(options.rows, columns, options.rows // 20, options.repeats, out)
    # Small batches: what is left is the fixed cost of a batch.
    compare(20_000, 5, 500, options.repeats, out)


if __name__ == "__main__":
    main()
