"""The simulator's machines: a steady pace, and sensors that spike, drift and fail."""

import json
import math
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.simulator.readings import NULLS, SENSORS, SENTINEL, SENTINELS, SPIKES
from spark_jobs.simulator.timeline import timeline

START = datetime(2024, 5, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
HOURS = 12


def shop(**settings: Any) -> Shop:
    return Shop(**{"seed": 7, "start": START, "rate": None, "streams": ("readings",), **settings})


@pytest.fixture(scope="module")
def machines() -> dict[str, list[dict[str, Any]]]:
    """The readings of half a day, machine by machine, as they were taken."""
    until_ms = START_MS + HOURS * 3_600_000
    found: dict[str, list[dict[str, Any]]] = {}
    for event in takewhile(lambda event: event.event_time_ms < until_ms, timeline(shop(), START_MS)):
        found.setdefault(event.key, []).append(event.values)
    return found


def said(machines: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [reading for readings in machines.values() for reading in readings]


def far_off(values: list[float], limit: float) -> list[bool]:
    """Of each value: whether it is further than `limit` standard deviations from the mean of those before it."""
    answers, mean, squares = [], 0.0, 0.0
    for n, value in enumerate(values):
        answers.append(n > 100 and abs(value - mean) > limit * math.sqrt(squares / n))
        before, mean = mean, mean + (value - mean) / (n + 1)
        squares += (value - before) * (value - mean)
    return answers


def test_each_machine_is_read_every_few_seconds(machines):
    assert sorted(machines) == [f"m-{number:02d}" for number in range(1, 11)]
    for readings in machines.values():
        gaps = [b["read_at"] - a["read_at"] for a, b in pairwise(readings)]
        assert 4_000 <= min(gaps) <= max(gaps) <= 6_000
        assert len(readings) == pytest.approx(HOURS * 720, abs=2)


def test_the_pace_and_the_number_of_machines_can_be_chosen():
    few = timeline(shop(machines=2, reading_every="1 minute"), START_MS)
    readings = list(takewhile(lambda event: event.event_time_ms < START_MS + 3_600_000, few))
    assert Counter(event.key for event in readings) == {"m-01": 60, "m-02": 60}


def test_a_sensor_now_and_then_says_nothing_or_minus_9999(machines):
    readings = said(machines)
    for value, share in ((SENTINEL, SENTINELS), (None, NULLS)):
        struck = [sum(reading[sensor.name] == value for sensor in SENSORS) for reading in readings]
        assert max(struck) == 1
        expected = share * len(readings)
        assert sum(struck) == pytest.approx(expected, abs=4.5 * math.sqrt(expected))


def test_spikes_are_single_readings_beyond_all_that_is_usual(machines):
    spikes = 0
    for readings in machines.values():
        for sensor in SENSORS:
            values = [r[sensor.name] for r in readings if r[sensor.name] not in (None, SENTINEL)]
            high = [value > sensor.usual for value in values]
            assert all(sensor.spike[0] <= value <= sensor.spike[1] for value in values if value > sensor.usual)
            assert all(value > 0 for value in values)
            spikes += sum(high)
            assert sum(a and b for a, b in pairwise(high)) <= 1
    expected = SPIKES * len(said(machines))
    assert spikes == pytest.approx(expected, abs=4.5 * math.sqrt(expected))


def test_only_machines_that_wear_are_off_for_many_readings(machines):
    """Against the running mean and variance of each machine, as one would watch them; spikes are left out."""
    worn: Counter[str] = Counter()
    for machine, readings in machines.items():
        for sensor in SENSORS:
            usual = [r[sensor.name] for r in readings if r[sensor.name] is not None and r[sensor.name] > 0]
            off = far_off([value for value in usual if value <= sensor.usual], 4)
            three = sum(all(off[place : place + 3]) for place in range(len(off) - 2))
            if sensor.wears:
                worn[machine] += three
            else:
                assert three == 0
    assert sum(count >= 3 for count in worn.values()) >= 5


def test_readings_are_doubles_in_json_and_in_parquet(tmp_path: Path):
    for file_format in ("json", "parquet"):
        simulate_files(shop(disorder=Disorder.none()), out=str(tmp_path / file_format), rows=3_000, format=file_format)
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "json" / "readings").iterdir())
        for line in path.read_text().splitlines()
    ]
    table = pq.read_table(tmp_path / "parquet" / "readings")
    for sensor in SENSORS:
        assert {type(line[sensor.name]) for line in lines} <= {float, type(None)}
        assert str(table.schema.field(sensor.name).type) == "double"
        assert table[sensor.name].to_pylist() == [line[sensor.name] for line in lines]
