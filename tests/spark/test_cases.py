"""Window cases of other engines: `make verify CASES=folder`; and how the runner feeds those of two streams."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.cases.case import Case, read
from tests.cases.differences import BUILT
from tests.cases.keyed import KEYED, run_keyed_case
from tests.cases.running import run_case


@pytest.mark.outside_data
def test_cases_of_other_engines_end_as_they_say_or_differ_for_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    folder = os.environ.get("TIDEMARK_CASES")
    if not folder:
        pytest.fail("TIDEMARK_CASES is not set: run `make verify DATA=folder CASES=folder`")
    cases = [found for found in read(Path(folder) / "windows.json") if found.kind in BUILT]
    keyed = [found for found in read(Path(folder) / "windows.json") if found.kind in KEYED]
    assert cases
    assert keyed
    problems = {}
    for found in keyed:
        try:
            run_keyed_case(spark, Lake(str(tmp_path / found.id)).ensure_exists(), found.raw)
        except AssertionError as error:
            problems[found.id] = str(error)
    for number, found in enumerate(cases):
        try:
            run_case(spark, Lake(str(tmp_path / str(number))).ensure_exists(), found)
        except AssertionError as error:
            problems[found.id] = str(error)
    assert problems == {}


def event(side: str, ts_ms: int, order: int, batch: int, key: str = "a") -> dict[str, Any]:
    return {"side": side, "ts_ms": ts_ms, "key": key, "value": None, "arrival_order": order, "batch": batch}


# `make cases` alone runs it; what the runner makes of cases: tests/unit/test_runner_of_cases.py
@pytest.mark.long
def test_both_sides_of_a_batch_are_fed_at_once(spark: SparkSession, lake: Lake) -> None:
    params = {"join_type": "full", "before_ms": 2, "after_ms": 5, "grace_ms": 3, "watermark_model": "per_batch"}
    late = event("left", 27, 7, 3)
    raw = {
        "id": "spark-x",
        "kind": "join",
        "params": params,
        "events": [
            *(event("left", 10, 1, 1), event("right", 12, 2, 1), event("left", 11, 3, 1, "b")),
            *(event("right", 13, 4, 1, "c"), event("right", 30, 5, 2, "x"), event("left", 30, 6, 2, "y")),
            late,
            event("left", 31, 8, 3, "x"),
        ],
        "expected": [
            {"left_ts_ms": 10, "right_ts_ms": 12, "batch": 1},
            {"left_ts_ms": 11, "right_ts_ms": None, "batch": 2},
            {"left_ts_ms": None, "right_ts_ms": 13, "batch": 2},
            {"left_ts_ms": 31, "right_ts_ms": 30, "batch": 3},
        ],
        "expected_late": [late],
    }
    assert run_case(spark, lake, Case(raw)) == []
