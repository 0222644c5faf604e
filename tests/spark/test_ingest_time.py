"""Clicks by when they arrived beside clicks by when they happened, and the difference: against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.pipelines import registry
from spark_jobs.spec import Pipeline
from tests.support import lakes

COLUMNS = {"click_id": pa.string(), "user_id": pa.string(), "page": pa.string(), "clicked_at": lakes.TIMESTAMP}
FIVE_MINUTES, DELAY = timedelta(minutes=5), timedelta(minutes=10)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
BATCHES = 5


@dataclass(frozen=True)
class Click:
    user: str | None
    clicked_at: datetime | None
    arrived_at: datetime
    batch: int


def window(instant: datetime) -> datetime:
    """Where the five minutes of an instant begin."""
    return instant - (instant - START) % FIVE_MINUTES


def clicks() -> list[Click]:
    """Batches three minutes apart. Most clicks came at once, some an hour late, a copy of some comes a batch later."""
    chance, made = random.Random(9), []
    for batch in range(BATCHES):
        arrived = START + batch * timedelta(minutes=3)
        for _ in range(25):
            ago = chance.choice([chance.uniform(0, 3), chance.uniform(0, 3), chance.uniform(3, 60)])
            made.append(Click(chance.choice("ab"), arrived - timedelta(minutes=ago), arrived, batch))
        # One without a time, one without a user, and a click whose time is exactly the edge of a window.
        made += [
            Click("a", None, arrived, batch),
            Click(None, arrived, arrived, batch),
            Click("b", START, arrived, batch),
        ]
    copies = [
        Click(each.user, each.clicked_at, each.arrived_at + timedelta(minutes=3), each.batch + 1) for each in made[::9]
    ]
    return made + [copy for copy in copies if copy.batch < BATCHES]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(str(tmp_path_factory.mktemp("clicks"))).ensure_exists()
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "clicked_at")
    for batch in range(BATCHES):
        mine = [click for click in clicks() if click.batch == batch]
        bronze.arrived_ms = lakes.ms(mine[0].arrived_at)
        bronze.append([{"user_id": each.user, "page": "/", "clicked_at": each.clicked_at} for each in mine])
    lakes.run_all(spark, lake, [pipeline("ingest_time_activity"), pipeline("ingest_time_difference")], close=True)
    return lake


def pipeline(name: str) -> Pipeline:
    definition = registry()[name]
    assert isinstance(definition, Pipeline)
    return lakes.one_file_a_batch(definition)


def result(lake: Lake, name: str) -> dict[Any, tuple[int, int]]:
    """Window and user -> events, and how many of them the other clock counts elsewhere."""
    rows = lakes.rows(lake, f"gold.{name}")
    found = {(row["window_start"], row["user_id"]): (row["events"], row["misplaced"]) for row in rows}
    assert len(found) == len(rows)
    return found


def counted(given: list[tuple[datetime, str | None, bool]]) -> dict[Any, tuple[int, int]]:
    events = Counter((start, user) for start, user, _ in given)
    misplaced = Counter((start, user) for start, user, elsewhere in given if elsewhere)
    return {group: (events[group], misplaced[group]) for group in events}


def is_misplaced(click: Click) -> bool:
    return click.clicked_at is not None and window(click.clicked_at) != window(click.arrived_at)


def is_late(click: Click) -> bool:
    """Whether its window had ended by what was known two batches before."""
    known = [each.clicked_at for each in clicks() if each.batch < click.batch - 1 and each.clicked_at is not None]
    return bool(known) and window(click.clicked_at) + FIVE_MINUTES <= max(known) - DELAY


def test_by_ingest_time_each_click_counts_when_it_arrived(lake: Lake) -> None:
    expected = counted([(window(each.arrived_at), each.user, is_misplaced(each)) for each in clicks()])
    assert result(lake, "ingest_time_activity") == expected
    lakes.assert_balanced(lake, pipeline("ingest_time_activity"))
    assert lakes.rows(lake, "gold.ingest_time_activity__late") == []
    longest = max(each.arrived_at - each.clicked_at for each in clicks() if each.clicked_at is not None)
    behind = max(row["seconds_behind"] for row in lakes.rows(lake, "gold.ingest_time_activity"))
    assert abs(behind - longest.total_seconds()) <= 1


def test_the_difference_says_in_which_windows_such_clicks_are_missing(lake: Lake) -> None:
    timed = [each for each in clicks() if each.clicked_at is not None]
    on_time = [each for each in timed if not is_late(each)]
    expected = counted([(window(each.clicked_at), each.user, is_misplaced(each)) for each in on_time])
    assert result(lake, "ingest_time_difference") == expected
    lakes.assert_balanced(lake, pipeline("ingest_time_difference"))
    assert len(lakes.rows(lake, "gold.ingest_time_difference__late")) == len(timed) - len(on_time) > 5
    # What one of the tables has too much is missing in the other, but for what was late.
    here, there = (result(lake, name) for name in ("ingest_time_activity", "ingest_time_difference"))
    late = sum(is_misplaced(each) for each in timed if is_late(each))
    assert sum(n for _, n in here.values()) == sum(n for _, n in there.values()) + late > late > 0
