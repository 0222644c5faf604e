"""Window cases of other engines: `make verify CASES=folder`; and the runner itself."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.cases.case import Case, CaseError, read
from tests.cases.differences import BUILT
from tests.cases.expectations import explanation
from tests.cases.rules import by_other_rules, by_tidemarks_rules
from tests.cases.running import run_case

PER_EVENT = "per_event: stream time"


def case(name: str, kind: str, times: list[tuple[str, int]], expected: list[tuple[Any, ...]], **more: Any) -> Case:
    params = {"size_ms": 10, "gap_ms": 5, "grace_ms": 0, "agg": "count", "watermark_model": PER_EVENT}
    raw = {
        "id": name,
        "kind": kind,
        "params": params | more.pop("params", {}),
        "events": [{"key": key, "ts_ms": ts, "value": 1, "arrival_order": i + 1} for i, (key, ts) in enumerate(times)],
        "expected": [dict(zip(("key", "start_ms", "end_ms", "value"), row, strict=True)) for row in expected],
        **more,
    }
    prepared = Case(raw)
    prepared.prepare()
    return prepared


def differences(of: Case) -> list[str]:
    return explanation(of, by_tidemarks_rules(of)[0])


@pytest.mark.outside_data
def test_the_cases_of_other_engines_end_as_they_say_or_differ_for_a_named_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = os.environ.get("TIDEMARK_CASES")
    if not folder:
        pytest.fail("TIDEMARK_CASES is not set: run `make verify DATA=folder CASES=folder`")
    cases = [found for found in read(Path(folder) / "windows.json") if found.kind in BUILT]
    assert cases
    problems = {}
    for number, found in enumerate(cases):
        try:
            run_case(spark, Lake(str(tmp_path / str(number))).ensure_exists(), found)
        except AssertionError as error:
            problems[found.id] = str(error)
    assert problems == {}


def test_a_case_that_nothing_explains_fails() -> None:
    wrong = case("spark-x", "tumbling", [("a", 1), ("a", 2), ("a", 30)], [("a", 0, 10, 3)])
    with pytest.raises(CaseError, match="windows: expected"):
        differences(wrong)


def test_a_difference_of_another_engine_explains_nothing() -> None:
    times, expected = [("a", 1), ("b", 30), ("a", 2)], [("a", 0, 10, 2)]
    late: dict[str, Any] = {"expected_late": [], "expected_open": None}
    with pytest.raises(CaseError):
        differences(case("kafka-x", "tumbling", [*times, ("a", 50)], expected, **late))


def test_a_watermark_of_each_key_is_told_from_one_for_all() -> None:
    times, expected = [("a", 1), ("b", 30), ("a", 2), ("a", 15)], [("a", 0, 10, 2)]
    assert differences(case("quix-x", "tumbling", times, expected, expected_late=[])) == ["watermark by key"]


def test_a_session_that_kafka_keeps_open_at_equality_is_closed_here() -> None:
    times, expected = [("a", 0), ("b", 5), ("a", 0), ("b", 30)], [("a", 0, 0, 2), ("b", 5, 5, 1)]
    found = differences(case("kafka-x", "session", times, expected, expected_late=[]))
    assert found == ["end of a session", "session open at equality"]


def test_an_event_that_joins_an_open_session_is_late_by_itself() -> None:
    times = [("a", 10), ("a", 14), ("a", 6), ("a", 3), ("a", 40)]
    marks = [{"after_arrival": 3, "watermark_ms": 9}, {"after_arrival": 5, "watermark_ms": 2**63 - 1}]
    params = {"watermark_model": "explicit"}
    expected = [("a", 3, 19, 4), ("a", 40, 45, 1)]
    found = case("flink-x", "session", times, expected, params=params, watermarks=marks, expected_late=[])
    assert differences(found) == ["watermark names the last instant", "session judged after merging"]


@pytest.mark.parametrize("fired", [[("a", 0, 10, 1), ("a", 0, 10, 2)], [("a", 0, 10, 1), ("a", 0, 10, 1)]])
def test_firings_of_a_window_that_accepts_late_events_end_in_one_row(fired: list[tuple[Any, ...]]) -> None:
    marks = [{"after_arrival": 1, "watermark_ms": 9}, {"after_arrival": 3, "watermark_ms": 19}]
    params = {"watermark_model": "explicit", "grace_ms": 5}
    found = case("flink-x", "tumbling", [("a", 1), ("a", 2), ("a", 12)], [*fired, ("a", 10, 20, 1)], params=params,
                 watermarks=marks, expected_late=[])  # fmt: skip
    assert differences(found) == ["watermark names the last instant", "fires before it is final"]


@pytest.mark.parametrize("kind", BUILT)
def test_without_a_difference_the_other_rules_are_those_of_the_model(kind: str) -> None:
    times = [("a", 20), ("b", -7), ("a", 33), ("a", 12), ("b", 61), ("a", 30), ("a", 58)]
    found = case("spark-x", kind, times, [], params={"hop_ms": 4 if kind == "hopping" else None, "grace_ms": 3})
    assert by_other_rules(found, frozenset()) == by_tidemarks_rules(found)[0]
