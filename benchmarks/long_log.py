"""What a table's log costs when it has grown: Delta's own look at it, one append, and the checkpoints of the log.

`python -m benchmarks.long_log` makes tables of 5,000 and 20,000 small commits, as a stream makes them (with log
checkpoints at the same intervals, pruned by the same code), measures both in turns, and prints the ratios. Commits of
the same form as a real one are written as files: to make them one by one through a writer would take hours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import Schema
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table as TextTable

from spark_jobs.commits.changes import Append
from spark_jobs.commits.writer import TableWriter
from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.stamps import Stamp
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables.opening import CHECKPOINT_INTERVAL, open_or_create, open_table, prune_log_checkpoints
from spark_jobs.spark.session import build_session

CACHE = Path(".cache/bench/log")
TABLE = "gold.counts"
ROUNDS = 5


def prepare(commits: int) -> Lake:
    """A lake whose one table has so many commits of one row each; made again."""
    folder = CACHE / str(commits)
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake(str(folder.absolute())).ensure_exists()
    rows = pa.table({"k": ["a"], "n": pa.array([1], pa.int64())})
    open_or_create(lake, TABLE, Schema.from_arrow(rows.schema))
    writer(lake).commit(Append(rows, 1, rows.nbytes), stamp(0))
    log = folder / "gold/counts/_delta_log"
    form = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    data = next(action["add"]["path"] for action in form if "add" in action)
    for version in range(2, commits + 1):
        text = "\n".join(json.dumps(action) for action in form)
        text = text.replace(data, f"{version:08d}-{data}").replace('\\"batch_id\\":0', f'\\"batch_id\\":{version - 1}')
        (log / f"{version:020d}.json").write_text(text + "\n")
        if version % CHECKPOINT_INTERVAL == 0:
            open_table(lake, TABLE).create_checkpoint()
        prune_log_checkpoints(lake, TABLE, version)
    return lake


def writer(lake: Lake) -> TableWriter:
    """Of the one pipeline."""
    return TableWriter(lake, TABLE, "result", "bench", query_id="query", epoch=1)


def stamp(batch_id: int) -> Stamp:
    """Of a batch of one row."""
    return Stamp(pipeline="bench", epoch=1, batch_id=batch_id, role="result", rows=1)


def look(spark: SparkSession, lake: Lake) -> float:
    """Seconds that Delta takes for the state of a table that it does not know yet."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    return seconds(lambda: spark.read.format("delta").load(lake.table_path(TABLE)).schema)


def append(lake: Lake, batch_id: int) -> float:
    """Seconds for one batch of one row."""
    rows = pa.table({"k": ["a"], "n": pa.array([1], pa.int64())})
    return seconds(lambda: writer(lake).commit(Append(rows, 1, rows.nbytes), stamp(batch_id)))


def seconds(what: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def checkpoint_bytes(lake: Lake) -> int:
    """Of all checkpoints of the log that are kept."""
    return sum(path.stat().st_size for path in Path(lake.uri, "gold/counts/_delta_log").glob("*.checkpoint*.parquet"))


def main() -> None:
    """Prints the figures of both tables and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs=2, default=(5_000, 20_000))
    sizes = parser.parse_args().commits
    lakes = {commits: prepare(commits) for commits in sizes}
    spark = build_session(lakes[sizes[0]], settings=Settings(master="local[2]"))
    looks: dict[int, list[float]] = {commits: [] for commits in sizes}
    appends: dict[int, list[float]] = {commits: [] for commits in sizes}
    for number in range(ROUNDS):
        for commits, lake in lakes.items():
            looks[commits].append(look(spark, lake))
            appends[commits].append(append(lake, commits + number))
    spark.stop()
    table = TextTable("commits", "look s", "append s", "log checkpoints MB", box=None)
    figures = [
        (
            commits,
            statistics.median(looks[commits]),
            statistics.median(appends[commits]),
            checkpoint_bytes(lake) / 1e6,
        )
        for commits, lake in lakes.items()
    ]
    for commits, *measured in figures:
        table.add_row(f"{commits:,}", *(f"{figure:.2f}" for figure in measured))
    table.add_row("ratio", *(f"{more / less:.2f}" for less, more in zip(figures[0][1:], figures[1][1:], strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
