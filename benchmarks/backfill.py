"""What a backfill costs beside a plain PySpark batch query, and what a repair costs as its table grows.

`python -m benchmarks.backfill` prints medians of three, each run in a process of its own, in turns:

- a backfill that writes all results of 10 million events, beside the plain query that writes the same table;
- the repair of 100 late events in a table of one million rows, beside the same in a table of a tenth of that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from benchmarks.late_split import SETTINGS, prepare, put_bronze
from benchmarks.measuring import CACHE
from benchmarks.queries import CASES
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.repair import execute as repair
from spark_jobs.spark.session import build_session

CASE = CASES["windows"]
BEGIN, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
EVENTS, KEYS, LATE = 10_000_000, 10_000, 100
WINDOWS = {"repair, a tenth": 10, "repair, whole": 100}
"""Of ten minutes, each with a row for every key."""


def stream(spark: SparkSession, lake: Lake) -> None:
    """Runs the pipeline until it has read what is there."""
    PipelineQuery(spark, lake, CASE.definition).start(until_caught_up=True).awaitTermination()


def streamed(root: Path) -> Path:
    """A lake in which the pipeline has run over the events of `root`; made once. Its rows are gone again."""
    made = CACHE / "backfill-streamed"
    if not (made / "done").exists():
        shutil.rmtree(made, ignore_errors=True)
        lake = Lake(str(made.absolute())).ensure_exists()
        put_bronze(lake, root)
        spark = build_session(lake, settings=SETTINGS)
        stream(spark, lake)
        spark.stop()
        open_table(lake, "gold.bench").delete()
        (made / "done").touch()
    return made


def with_late(windows: int) -> Path:
    """A lake with a result row for every window and key, and late events of five windows; made once."""
    made = CACHE / f"repair-{windows}"
    if (made / "done").exists():
        return made
    shutil.rmtree(made, ignore_errors=True)
    lake = Lake(str(made.absolute())).ensure_exists()
    spark = build_session(lake, settings=SETTINGS)
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    seq = 0
    for first in range(0, windows + 2, 2):
        _sales(spark, lake, seq, 2 * KEYS, f"{begin} + 600 * ({first} + id DIV {KEYS})", f"id % {KEYS}")
        seq += 2 * KEYS
    _sales(spark, lake, seq, LATE, f"{begin} + 600 * (id % 5)", f"id * {KEYS // LATE}")
    stream(spark, lake)
    spark.stop()
    (made / "done").touch()
    return made


def _sales(spark: SparkSession, lake: Lake, seq: int, rows: int, second: str, product: str) -> None:
    position = {"name": F.lit("bench"), "partition": F.lit(None).cast("int"), "position": F.col("_ingest_seq")}
    (
        spark.range(rows)
        .selectExpr(
            f"concat('p', {product}) AS product_id",
            "1 AS quantity",
            "CAST(2.50 AS DECIMAL(10, 2)) AS unit_price",
            f"timestamp_seconds({second}) AS sold_at",
            f"concat('e', id + {seq}) AS _event_id",
            f"id + {seq} AS _ingest_seq",
            "current_timestamp() AS _ingest_time",
        )
        .withColumn("_source", F.struct(*(column.alias(name) for name, column in position.items())))
        .withColumn("_heartbeat", F.lit(False))
        .coalesce(1)
        .write.format("delta")
        .mode("append")
        .option("delta.dataSkippingStatsColumns", "sold_at,_ingest_seq")
        .save(lake.table_path("bronze.sales"))
    )


def measure_one(what: str, lake: Lake) -> dict[str, float]:
    """One run in this process: seconds, and rows written."""
    spark = build_session(lake, settings=SETTINGS)
    began = time.monotonic()
    if what == "plain":
        events = spark.read.format("delta").load(lake.table_path("bronze.sales")).where("NOT _heartbeat")
        window = F.window("sold_at", "10 minutes").alias("w")
        measures = [F.expr(sql).alias(name) for name, sql in CASE.definition.steps[0].measures.items()]
        rows = events.groupBy(window, "product_id").agg(*measures).select("w.start", "w.end", "product_id", *_MEASURES)
        rows.write.format("delta").save(lake.table_path("gold.plain"))
        seconds = time.monotonic() - began
        written = float(open_table(lake, "gold.plain").to_pyarrow_dataset().count_rows())
    elif what == "backfill":
        target, plan = plan_backfill(lake, CASE.definition, BEGIN, END, force=True)
        done = backfill.execute(spark, target, plan)
        seconds, written = time.monotonic() - began, float(sum(each.changed.rows for each in done))
    else:
        target, late = repair.plan_repair(lake, CASE.definition)
        found = repair.execute(spark, target, late)
        seconds, written = time.monotonic() - began, float(found.changed.rows)
    spark.stop()
    return {"seconds": seconds, "written": written}


_MEASURES = tuple(CASE.definition.steps[0].measures)


def compare(names: tuple[str, str], repeats: int, out: Console) -> None:
    """Both in turns, each run on a copy of its lake; prints medians and the ratio of the second to the first."""
    lakes = {name: _lake_of(name) for name in names}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, root in lakes.items():
            folder = Path(tempfile.mkdtemp(prefix="tidemark-bench-")) / "lake"
            # The names of its tables are in its checkpoint's offsets, its address is not.
            shutil.copytree(root, folder, symlinks=True)
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.backfill", "--one", name, "--lake", str(folder)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(folder.parent)
    medians = {name: statistics.median(run["seconds"] for run in found) for name, found in runs.items()}
    for name, found in runs.items():
        seconds = " ".join(f"{run['seconds']:.1f}" for run in found)
        out.print(f"{name:16} {medians[name]:6.1f} s  {found[0]['written']:>10,.0f} rows  ({seconds})")
    first, second = names
    out.print(f"ratio {medians[second] / medians[first]:.2f}\n")


def _lake_of(name: str) -> Path:
    if name in WINDOWS:
        return with_late(WINDOWS[name])
    return streamed(prepare("windows", EVENTS, 4, EVENTS // 20))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one")
    parser.add_argument("--lake")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one, Lake(options.lake))))
        return
    out = Console(width=110)
    for names in (("plain", "backfill"), ("repair, a tenth", "repair, whole")):
        compare(names, options.repeats, out)


if __name__ == "__main__":
    main()
