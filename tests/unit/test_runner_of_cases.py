"""The runner of other engines' cases: what it reads of a case, and what explains one."""

import random
from typing import Any

import pytest

from tests.cases.case import Case, CaseRow
from tests.cases.differences import DIFFERENCES, WINDOWS
from tests.cases.errors import CaseError
from tests.cases.expectations import disagreement, explanation
from tests.cases.reach import Reach, reach
from tests.cases.rows import check_rows
from tests.cases.rules import by_other_rules, by_tidemarks_rules

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


@pytest.mark.parametrize("kind", WINDOWS)
def test_without_a_difference_the_other_rules_are_those_of_the_model(kind: str) -> None:
    times = [("a", 20), ("b", -7), ("a", 33), ("a", 12), ("b", 61), ("a", 30), ("a", 58)]
    found = case("spark-x", kind, times, [], params={"hop_ms": 4 if kind == "hopping" else None, "grace_ms": 3})
    assert by_other_rules(found, frozenset()) == by_tidemarks_rules(found)[0]


WINDOWED = [("a", 1), ("a", 2), ("a", 30), ("a", 3)]


def test_a_case_that_asserts_only_what_is_late_judges_no_window() -> None:
    wrong = [("a", 0, 10, 7)]
    late_only = case("spark-x", "tumbling", WINDOWED, wrong, asserts="late_only", expected_late=late(3, 4))
    assert differences(late_only) == []
    with pytest.raises(CaseError, match="late events"):
        differences(case("spark-x", "tumbling", WINDOWED, wrong, asserts="late_only", expected_late=[]))
    with pytest.raises(CaseError, match="windows"):
        differences(case("spark-x", "tumbling", WINDOWED, wrong, expected_late=late(3, 4)))


def late(time_ms: int, order: int, key: str = "a") -> list[dict[str, Any]]:
    return [{"key": key, "ts_ms": time_ms, "arrival_order": order}]


@pytest.mark.parametrize(
    ("unasserted", "explained"),
    [
        ([{"key": "a", "start_ms": 0, "end_ms": 10, "value": 5}], True),
        ([{"key": "a", "start_ms": 0}], True),
        ([{"end_ms": 10}], True),
        ([{"key": "b", "start_ms": 0, "end_ms": 10}], False),
        ([{"key": "a", "start_ms": 30, "end_ms": 40}], False),
    ],
)
@pytest.mark.parametrize("expected", [[], [("a", 0, 10, 7)]])
def test_a_window_that_a_case_does_not_judge_may_be_anything(
    unasserted: list[dict[str, Any]], explained: bool, expected: list[tuple[Any, ...]]
) -> None:
    found = case("spark-x", "tumbling", WINDOWED, expected, unasserted=unasserted, expected_late=late(3, 4))
    assert (disagreement(found, by_tidemarks_rules(found)[0]) is None) == explained


def test_an_open_window_that_a_case_does_not_judge_may_be_anything() -> None:
    window = {"key": "a", "start_ms": 30, "end_ms": 40}
    closed = [("a", 0, 10, 2)]
    with pytest.raises(CaseError, match="open windows"):
        differences(case("spark-x", "tumbling", WINDOWED, closed, expected_open=[]))
    assert differences(case("spark-x", "tumbling", WINDOWED, closed, expected_open=[], unasserted=[window])) == []


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("asserts", "early_only", "asserts: expected 'late_only'"),
        ("unasserted", ["a"], "unasserted: expected a list"),
        ("unasserted", [{"value": 1}], "unasserted: expected windows by key"),
        ("params", {"size_ms": None}, "size_ms: expected milliseconds"),
    ],
)
def test_what_cannot_be_read_fails_with_its_name(field: str, value: Any, said: str) -> None:
    with pytest.raises(CaseError, match=said):
        differences(case("spark-x", "tumbling", WINDOWED, [("a", 0, 10, 2)], **{field: value}))


def test_what_is_no_case_fails() -> None:
    with pytest.raises(CaseError, match="expected a case with id, kind, params and events"):
        Case({"id": "spark-x", "kind": "tumbling"})


def row_case(kind: str, events: list[dict[str, Any]], expected: list[dict[str, Any]], **more: Any) -> Case:
    params = {"grace_ms": 0, "watermark_model": PER_EVENT, "before_ms": 2, "after_ms": 5} | more.pop("params", {})
    numbered = [{"key": "a", "value": index, **event, "arrival_order": index + 1} for index, event in enumerate(events)]
    raw = {
        "id": more.pop("id", "spark-x"),
        "kind": kind,
        "params": params,
        "events": numbered,
        "expected": expected,
        **more,
    }
    prepared = Case(raw)
    prepared.prepare()
    check_rows(prepared)
    return prepared


def left(time_ms: int, **more: Any) -> dict[str, Any]:
    return {"side": "left", "ts_ms": time_ms, **more}


def right(time_ms: int, **more: Any) -> dict[str, Any]:
    return {"side": "right", "ts_ms": time_ms, **more}


class TestDedup:
    def test_keys_are_fields_of_the_event_or_of_its_value(self) -> None:
        events = [{"ts_ms": 1, "value": {"id": 1}}, {"ts_ms": 2, "value": {"id": 1}}, {"ts_ms": 3, "value": {"id": 2}}]
        for keys, firsts in ((["id"], [1, 3]), (["key"], [1]), (["event_time"], [1, 2, 3]), (["key", "id"], [1, 3])):
            expected = [{"ts_ms": ts, "emitted_after": ts} for ts in firsts]
            params = {"dedup_keys": keys, "within_ms": 100, "grace_ms": 10}
            duplicates = len(events) - len(firsts)
            assert differences(row_case("dedup", events, expected, params=params, duplicates=duplicates)) == []

    @pytest.mark.parametrize(
        ("params", "said"),
        [
            ({"dedup_keys": ["id"], "grace_ms": 5}, "has no field 'id'"),
            ({"dedup_keys": "key", "grace_ms": 5}, "dedup_keys: expected a list"),
            ({"dedup_keys": ["key"]}, "how long a key is remembered"),
        ],
    )
    def test_a_key_that_is_not_there_and_a_time_that_is_not_told_fail(self, params: Any, said: str) -> None:
        with pytest.raises(CaseError, match=said):
            differences(row_case("dedup", [{"ts_ms": 1}], [], params=params))

    def test_the_number_of_duplicates_counts(self) -> None:
        found = row_case("dedup", [{"ts_ms": 1}, {"ts_ms": 1}], [{"ts_ms": 1}], params={"grace_ms": 5}, duplicates=2)
        with pytest.raises(CaseError, match="duplicates: expected 2, got 1"):
            differences(found)

    def test_keys_that_spark_keeps_for_ever(self) -> None:
        events = [{"ts_ms": 1}, {"ts_ms": 50, "key": "b"}, {"ts_ms": 45}]
        expected = [{"ts_ms": 1}, {"ts_ms": 50, "key": "b"}]
        params = {"grace_ms": 10, "within_ms": 20}
        assert differences(row_case("dedup", events, expected, params=params)) == ["keys kept for ever"]


class TestJoin:
    def test_matches_and_events_alone_are_told_by_what_an_entry_says(self) -> None:
        events = [left(10), right(15), right(9), left(40), right(40), left(80), right(80)]
        params = {"join_type": "left", "grace_ms": 10}
        matches = [
            {"key": "a", "left_value": 0, "right_value": 1, "ts_ms": 10, "emitted_after": 2},
            {"key": "a", "left_ts_ms": 10, "right_ts_ms": 9, "emitted_after": 3},
            {"left_value": 3, "right_value": 4, "ts_ms": 40},
            {"left_value": 5, "right_value": 6},
        ]
        assert differences(row_case("join", events, matches, params=params)) == []
        alone = [left(10, key="b"), *events]
        expected = [*matches, {"key": "b", "left_ts_ms": 10, "right_ts_ms": None, "emitted_after": 6}]
        moved = [entry | {"emitted_after": entry["emitted_after"] + 1} for entry in matches[:2]]
        renumbered = [
            {"key": "a", "left_ts_ms": 10, "right_ts_ms": ts, "emitted_after": entry["emitted_after"]}
            for ts, entry in zip((15, 9), moved, strict=True)
        ]
        rest = [{"left_ts_ms": ts, "right_ts_ms": ts} for ts in (40, 80)]
        assert differences(row_case("join", alone, [*renumbered, *rest, expected[-1]], params=params)) == []

    def test_a_row_too_many_or_too_few_fails(self) -> None:
        match = {"left_value": 0, "right_value": 1}
        assert differences(row_case("join", [left(10), right(11)], [match])) == []
        with pytest.raises(CaseError, match="rows: expected"):
            differences(row_case("join", [left(10), right(11)], [match, match]))
        with pytest.raises(CaseError, match="rows: expected no more"):
            differences(row_case("join", [left(10), right(11)], []))

    def test_a_row_that_a_case_does_not_judge_may_be_there_or_not(self) -> None:
        events, match = [left(10), right(11)], {"left_value": 0, "right_value": 1}
        assert differences(row_case("join", events, [], unasserted=[match])) == []
        assert differences(row_case("join", events[:1], [match], unasserted=[match])) == []

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"expected": [{"key": "a", "value": "0+1"}]}, "has no \\['value'\\]"),
            ({"expected": [], "expected_open": [{"key": "a"}]}, "expected_open: a join has none"),
            ({"expected": [], "params": {"join_type": "semi"}}, "join_type: expected inner"),
            ({"expected": [], "params": {"condition": "left.v > right.v"}}, "condition: expected clauses"),
            ({"expected": [], "params": {"before_ms": -3, "join_type": "left"}}, "left join with Reach"),
            ({"expected": [], "params": {"watermark_model": "per_hour"}}, "watermark_model: expected"),
            ({"expected": [], "params": {"before_ms": None, "after_ms": None, "size_ms": 5}}, "got \\['size_ms'\\]"),
        ],
    )
    def test_what_cannot_be_compared_fails(self, more: Any, said: str) -> None:
        with pytest.raises(CaseError, match=said):
            row_case("join", [left(1), right(2)], **more)

    def test_an_event_without_a_side_fails(self) -> None:
        with pytest.raises(CaseError, match="side: expected 'left' or 'right'"):
            row_case("join", [left(1), {"ts_ms": 2}], [])

    @pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
    def test_the_kind_of_join_decides_which_events_alone_are_wanted(self, how: str) -> None:
        events = [left(1), right(9), left(50, key="x"), right(50, key="y"), left(90, key="z"), right(90, key="z")]
        found, _ = by_tidemarks_rules(row_case("join", events, [], params={"join_type": f"{how}_outer"}))
        alone = {"inner": [], "left": [(0, -1), (2, -1)], "right": [(-1, 1), (-1, 3)]}
        alone["full"] = [*alone["left"], *alone["right"]]
        assert sorted(row.members for row in found.rows) == sorted([(4, 5), *alone[how]])

    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            ({"before_ms": 3, "after_ms": 0}, (-3, 0)),
            ({"after_ms": 7}, (0, 7)),
            ({"before_ms": -2, "after_ms": 7}, (2, 7)),
            ({"grace_ms": 5, "join_type": "left"}, (None, None)),
            ({"condition": "left.ts < right.ts - 5000"}, (5001, None)),
            ({"condition": "right.ts >= left.ts - 3 AND right.ts <= left.ts + 4"}, (-3, 4)),
            ({"condition": "left.key = right.key and left.event_time > right.event_time"}, (None, -1)),
            ({"condition": "left.ts = right.ts + 2"}, (-2, -2)),
        ],
    )
    def test_bounds_are_read(self, params: Any, expected: tuple[int | None, int | None]) -> None:
        assert reach(params) == Reach(*expected)

    def test_a_join_without_any_bound_has_no_definition(self) -> None:
        params = {"before_ms": None, "after_ms": None}
        assert row_case("join", [left(1), right(2)], [], params=params).refused

    def test_a_join_with_one_bound_runs_within_the_time_span_of_the_case(self) -> None:
        params = {"condition": "left.ts < right.ts - 5"}
        found = row_case("join", [left(1), right(6), right(7), right(90)], [], params=params | {"grace_ms": 500})
        assert (found.refused, found.narrower, found.within_ms, found.before_ms) == (False, True, 90, 0)
        assert by_tidemarks_rules(found)[0].rows == (CaseRow((0, 2), 3), CaseRow((0, 3), 4))
        found.raw["expected"] = [{"left_ts_ms": 1, "right_ts_ms": 7}, {"left_ts_ms": 1, "right_ts_ms": 90}]
        assert differences(found) == ["join without an end"]

    def test_one_stream_time_for_both_sides(self) -> None:
        expected = [{"left_value": 0, "right_value": None, "emitted_after": 2}]
        params = {"join_type": "left"}
        found = row_case("join", [left(1), right(50)], expected, id="kafka-x", params=params)
        assert differences(found) == ["one stream time for both sides"]
        with pytest.raises(CaseError):
            differences(row_case("join", [left(1), right(50)], expected, params=params))

    def test_events_that_other_engines_join_though_they_are_late(self) -> None:
        events = [left(1), right(50), left(50), right(3)]
        expected = [{"left_value": 0, "right_value": 3}, {"left_value": 2, "right_value": 1}]
        found = row_case("join", events, expected, id="quix-x", expected_late=[])
        assert differences(found) == ["joined as long as it is kept"]

    def test_an_event_without_a_match_that_is_written_at_once(self) -> None:
        expected = [{"left_value": 0, "right_value": None}, {"left_value": 0, "right_value": 1}]
        found = row_case("join", [left(1), right(2)], expected, id="quix-x", params={"join_type": "left"})
        assert differences(found) == ["unmatched at once"]

    def test_a_record_that_only_looks_back(self) -> None:
        assert differences(row_case("join", [right(12), left(10)], [], id="quix-x")) == ["only looks back"]

    @pytest.mark.parametrize(("time_ms", "used"), [(19, []), (20, ["in time at the watermark"])])
    def test_an_event_at_flinks_watermark(self, time_ms: int, used: list[str]) -> None:
        marks = [{"after_arrival": 1, "watermark_ms": 20}]
        expected = [{"left_value": 0, "right_value": 1}] if used else []
        dropped = [] if used else late(time_ms, 2)
        found = row_case("join", [left(18), right(time_ms)], expected, id="flink-x", watermarks=marks,
                         params={"watermark_model": "explicit"}, expected_late=dropped)  # fmt: skip
        assert differences(found) == used


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["dedup", "join"])
def test_without_a_difference_other_rules_of_rows_are_those_of_the_model(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    events = [
        {"key": chance.choice(["a", "b", None]), "ts_ms": chance.randrange(60), "batch": number // 3}
        | ({"side": chance.choice(["left", "right"])} if kind == "join" else {})
        for number in range(30)
    ]
    fed = chance.choice(["per_event", "per_batch", "none", "explicit"])
    marks = [{"after_arrival": 5 * n, "watermark_ms": chance.randrange(60)} for n in range(1, 6)]
    params = {"watermark_model": fed, "grace_ms": chance.randrange(1, 20), "join_type": "full", "within_ms": 7}
    found = row_case(kind, events, [], params=params, watermarks=marks)
    assert by_other_rules(found, frozenset()) == by_tidemarks_rules(found)[0]


def test_each_difference_says_why() -> None:
    assert all(engines and kinds and why.endswith(".") for engines, kinds, why in DIFFERENCES.values())
