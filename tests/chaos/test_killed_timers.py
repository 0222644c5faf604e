"""Timers across real kills, by the clock and by event time: each that was set gives its row, and gives it once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.spec import Pipeline
from tests.chaos import kills, timers
from tests.support import lakes

FILE, DYING = str(Path(timers.__file__)), ("-m", "tests.chaos.dying_driver")
PIPELINES = (timers.by_clock, timers.by_time)
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HEARD = {"a": [0, 1], "b": [0.5], "c": [2]}
"""Machine -> minutes of its readings."""
PASSED = 4 * MINUTE
"""When a heartbeat is by which the watermark passes all of them, and no timer."""


def run(*program: str, lake: Lake) -> list[str]:
    chosen = [f"{FILE}:{each.name}" for each in PIPELINES]
    return [sys.executable, *program, "run", *chosen, "--lake", lake.uri]


def batches(lake: Lake, pipeline: Pipeline) -> tuple[int, int]:
    """The newest batch that Spark has planned, and the newest that has ended; -1: none."""
    epoch = current_epoch(lake, pipeline.name)
    if epoch is None:
        return -1, -1
    planned, ended = (newest_batch(lake, epoch.folder, log) for log in ("offsets", "commits"))
    return -1 if planned is None else planned, -1 if ended is None else ended


def arrive(bronze: lakes.Bronze) -> datetime:
    """The readings; when they have arrived: a moment from now, so that no timer is due before all are set."""
    arrived_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
    bronze.arrived_ms = lakes.ms(arrived_at)
    bronze.append([{"machine": k, "t": START + at * MINUTE} for k, times in HEARD.items() for at in times])
    bronze.heartbeat(lakes.ms(START + PASSED))
    return arrived_at


def timers_of(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> dict[str, datetime]:
    """Machine -> when its timer is to fire, as the newest batch that has ended has left it."""
    asked = plan_state(lake, pipeline.name, keys=(), open_windows=False, at=None, limit=9)
    kept = next(each for each in read_state(spark, lake, asked) if each.side == "kept")
    rows = [dict(zip(kept.columns, row, strict=True)) for row in kept.rows]
    return {row["machine"]: dict(row["timers"])["silent"] for row in rows}


def failing_once() -> Callable[[str, int], None]:
    """What stops a query when it has committed a result, the first time."""
    left = [1]

    def reached(point: str, _: int) -> None:
        if point == "result_committed" and left:
            left.clear()
            raise InterruptedError

    return reached


def test_a_timer_fires_once_across_kills(spark: SparkSession, lake: Lake) -> None:
    bronze = lakes.Bronze(lake, "bronze.readings", {"machine": pa.string(), "t": lakes.TIMESTAMP}, "t")
    bronze.heartbeat(lakes.ms(START))
    # What a first run makes and starts takes none of the time until the first timer is due.
    lakes.run_all(spark, lake, PIPELINES, close=False)
    arrived_at = arrive(bronze)
    lakes.run_all(spark, lake, PIPELINES, close=False)
    expected = {
        "by_clock": dict.fromkeys(HEARD, arrived_at + timers.BY_CLOCK),
        "by_time": {machine: START + times[-1] * MINUTE + timers.BY_TIME for machine, times in HEARD.items()},
    }
    assert {each.name: timers_of(spark, lake, each) for each in PIPELINES} == expected

    bronze.heartbeat(lakes.ms(START + 60 * MINUTE))
    kills.run_until_death(run(*DYING, lake=lake), {"DIES_WITH": ",".join(expected)})
    for each in PIPELINES:
        planned, ended = batches(lake, each)
        assert planned == ended + 1, "the batch that fires was computed"
        assert lakes.rows(lake, each.sink.table) == []

    for each in PIPELINES:
        with pytest.raises(InterruptedError):
            lakes.run(spark, lake, each, failpoint=failing_once())
        lakes.run(spark, lake, each)
        rows = [(row["machine"], row["t"], row["heard"], row["__events"]) for row in lakes.rows(lake, each.sink.table)]
        fired = expected[each.name].items()
        assert sorted(rows) == sorted((machine, at, len(HEARD[machine]), len(HEARD[machine])) for machine, at in fired)
        lakes.assert_balanced(lake, each)
        # Nothing fires again.
        assert timers_of(spark, lake, each) == {}
