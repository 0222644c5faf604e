"""What a savepoint costs, and how soon a killed stream has its next batch, by keys in the state.

Each size twice: with changelogs (incremental checkpoints, as Tidemark sets them) and with a snapshot of all state in
each batch. A driver in a process of its own keeps a window open for each key; then small batches come, of 1,000 events.
It is killed with its JVM; the time until the next batch is committed counts from its next start, session included.
Beside that: small batches with a savepoint after each, and without.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console
from rich.table import Table as TextTable

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.savepoints import savepoints, take
from spark_jobs.lake.commit_records.history import newest_batch
from spark_jobs.spec import Aggregate, Pipeline, Sink, Table, Tumbling, Watermark

CLICKS = Pipeline(
    name="clicks_by_user",
    source=Table("bronze.clicks", max_files_per_trigger=1),
    event_time="clicked_at",
    watermark=Watermark(delay="1 hour"),
    steps=(Aggregate(window=Tumbling("1 day"), by=("user_id",), measures={"clicks": "count(*)"}),),
    sink=Sink("gold.clicks_by_user", mode="append"),
)
TIME = pa.timestamp("us", tz="UTC")
START = datetime(2026, 1, 1, tzinfo=UTC)
SMALL, BATCHES = 1_000, 8
CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

_next_seq: dict[str, int] = {}


def append(lake: Lake, keys: range) -> None:
    """A batch with one event of each key."""
    begin = _next_seq.get(lake.uri, 0)
    _next_seq[lake.uri] = begin + len(keys)
    numbers = pa.array(range(begin, begin + len(keys)), pa.int64())
    times = pa.array([START + timedelta(seconds=begin % 3600)] * len(keys), TIME)
    rows = pa.table(
        {
            "user_id": pa.array([f"user-{key}" for key in keys]),
            "clicked_at": times,
            "_event_id": numbers.cast(pa.string()),
            "_ingest_seq": numbers,
            "_ingest_time": times,
            "_heartbeat": pa.repeat(pa.scalar(False), len(keys)),
        }
    )
    write_deltalake(lake.table_uri("bronze.clicks"), rows, mode="append")


def drive(uri: str, changelogs: str) -> None:
    """Runs the pipeline until it is killed; in a process of its own."""
    import threading

    from spark_jobs.engine.driver import Driver
    from spark_jobs.spark.session import build_session

    lake = Lake(uri)
    spark = build_session(lake)
    spark.conf.set(CHANGELOGS, changelogs)
    Driver(spark, lake, [CLICKS]).run_continuously(threading.Event())


def started(lake: Lake, changelogs: bool) -> subprocess.Popen[bytes]:
    """A driver in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.checkpoints", "--drive", lake.uri, str(changelogs).lower()]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def until(condition: Callable[[], bool]) -> float:
    """Waits; how many seconds."""
    began = time.monotonic()
    while not condition():
        time.sleep(0.05)
        if time.monotonic() - began > 600:
            raise TimeoutError
    return time.monotonic() - began


def batches(lake: Lake) -> int:
    """How many batches the table has."""
    try:
        found = newest_batch(lake, "gold.clicks_by_user", CLICKS.name, 1)
    except LookupError:
        return 0
    return 0 if found is None else found[0] + 1


def measured(keys: int, changelogs: bool, folder: Path) -> dict[str, float]:
    """The figures of one size."""
    lake = Lake(str(folder / f"{keys}-{changelogs}")).ensure_exists()
    append(lake, range(keys))
    driver = started(lake, changelogs)
    try:
        until(lambda: batches(lake) >= 1)
        alone = [_batch(lake, keys) for _ in range(BATCHES)]
        epoch = current_epoch(lake, CLICKS.name)
        assert epoch is not None
        seconds, beside = [], []
        for number in range(BATCHES):
            began = time.monotonic()
            take(lake, epoch, name=f"s{number}", by="the benchmark")
            seconds.append(time.monotonic() - began)
            beside.append(_batch(lake, keys))
        newest = savepoints(lake, CLICKS.name)[-1]
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        before = batches(lake)
        append(lake, range(SMALL))
        driver = started(lake, changelogs)
        recovered = until(lambda: batches(lake) > before)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return {
        "batch s": statistics.median(alone),
        "beside savepoints s": statistics.median(beside),
        "savepoint s": statistics.median(seconds),
        "savepoint MB": newest.size_bytes / 1e6,
        "files": len(newest.files),
        "recovery s": recovered,
    }


def _batch(lake: Lake, keys: int) -> float:
    """Seconds from a small batch's arrival to its commit."""
    before = batches(lake)
    append(lake, range(min(SMALL, keys)))
    return until(lambda: batches(lake) > before)


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000, 2_000_000])
    parser.add_argument("--drive", nargs=2)
    asked = parser.parse_args()
    if asked.drive:
        drive(*asked.drive)
        return
    shown, found = TextTable(box=None, pad_edge=False), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="tidemark-checkpoints-") as folder:
        for keys in asked.keys:
            for changelogs in (True, False):
                kind = "changelogs" if changelogs else "snapshots"
                found.append({"keys": f"{keys:,}", "state": kind, **measured(keys, changelogs, Path(folder))})
                print(json.dumps(found[-1]), flush=True)
    for name in found[0]:
        shown.add_column(name, justify="right")
    for row in found:
        shown.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(shown)


if __name__ == "__main__":
    main()
