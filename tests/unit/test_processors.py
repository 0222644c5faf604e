"""Processors without Spark: what they are given, what is kept of them, and what their mistakes say."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import (
    begin_epoch,
    current_epoch,
    epoch_at,
    note_raised,
    refuse_changed_definition,
)
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.plan.changes import Compatibility, changes
from spark_jobs.plan.processing import Bucket, ProcessorError, ProcessRunner, codec
from spark_jobs.spec import (
    DefinitionError,
    Pipeline,
    Process,
    Processor,
    Sink,
    Table,
    Timers,
    Watermark,
    definition_from_json,
)
from tidemark.testing import ProcessorTest

COLUMNS = {"user": "STRING", "page": "STRING", "at": "TIMESTAMP"}
GAP = timedelta(seconds=5)


class Debounce(Processor):
    """The last of the events of a user that are less than five seconds apart."""

    output: ClassVar = {"page": "STRING", "clicks": "INT"}
    state: ClassVar = {"page": "STRING", "clicks": "INT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state.update(page=event["page"], clicks=(state["clicks"] or 0) + 1)
        timers.set("quiet", event["at"] + GAP)

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> Iterator[Mapping]:
        yield dict(state)
        state.clear()


class Silent(Processor):
    """Users who have sent nothing for ten minutes, by the clock, and that they are back."""

    output: ClassVar = {"silent": "BOOLEAN", "since": "TIMESTAMP"}
    state: ClassVar = {"silent": "BOOLEAN"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> Iterator[Mapping]:
        if state["silent"]:
            yield {"silent": False, "since": event["at"]}
        state["silent"] = False
        timers.set("silent", event.get("_ingest_time", event["at"]) + timedelta(minutes=10))

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> Iterator[Mapping]:
        state["silent"] = True
        yield {"silent": True, "since": at}


class Wrong(Processor):
    """Gives what its test asks for."""

    output: ClassVar = {"small": "TINYINT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> list[Mapping[str, Any]]:
        match event["page"]:
            case "large":
                return [{"small": 128}]
            case "unknown":
                return [{"more": 1}]
            case "state":
                state["more"] = 1
            case "zone":
                timers.set("late", datetime(2026, 1, 1))
            case "error":
                return [{}["page"]]
        return []


def pipeline(processor: type[Processor], **options: Any) -> Pipeline:
    by_clock = options.get("clock") == "processing_time"
    return Pipeline(
        name="clicks",
        source=Table("bronze.clicks"),
        event_time="at",
        watermark=None if by_clock else Watermark(delay="1 minute"),
        steps=(Process(processor, by=("user",), **options),),
        sink=Sink("gold.clicks"),
    )


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def click(second: int, page: str = "a", user: str | None = "u") -> dict[str, Any]:
    return {"user": user, "page": page, "at": at(second)}


def test_events_are_taken_in_order_of_time_and_a_timer_gives_a_row() -> None:
    test = ProcessorTest(pipeline(Debounce), COLUMNS)
    test.events(click(4, "second"), click(0, "first"), click(20, "third"))
    assert test.rows == []
    test.watermark(at(10))
    assert test.rows == [{"user": "u", "at": datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC), "page": "second", "clicks": 2}]
    assert (test.state(user="u"), test.timers(user="u")) == (None, {})
    test.events(click(10, "too late"), click(11)).watermark(at(12))
    assert [event["page"] for event in test.late] == ["too late"]
    assert test.state(user="u") == {"page": "a", "clicks": 1}
    assert test.timers(user="u") == {"quiet": datetime(2026, 1, 1, 0, 0, 16, tzinfo=UTC)}
    assert test.ledger == {"read": 5, "on_time": 4, "late": 1, "counted": 2, "remembered": 2}


def test_an_event_at_the_instant_of_a_timer_comes_before_it() -> None:
    test = ProcessorTest(pipeline(Debounce), COLUMNS).events(click(0), click(5, "last")).watermark(at(60))
    assert [(row["page"], row["clicks"]) for row in test.rows] == [("last", 2)]


@pytest.mark.parametrize("cuts", [[60], [1, 4, 5, 6, 9, 10, 60], [9, 10, 12, 60]])
def test_rows_are_the_same_however_the_watermark_moves(cuts: list[int]) -> None:
    test = ProcessorTest(pipeline(Debounce), COLUMNS)
    test.events(*(click(second, str(second), user) for second in (12, 3, 0, 7, 30) for user in ("u", "v", None)))
    for cut in cuts:
        test.watermark(at(cut))
    expected = [("12", 4), ("30", 1)]
    for user in ("u", "v", None):
        assert [(row["page"], row["clicks"]) for row in test.rows if row["user"] == user] == expected


def test_by_the_clock_a_timer_goes_by_when_events_arrive() -> None:
    silent = pipeline(Silent, clock="processing_time", order="arrival")
    test = ProcessorTest(silent, COLUMNS).clock(at(0)).events(click(0)).clock(at(599))
    assert test.rows == []
    test.clock(at(601))
    assert [(row["silent"], row["since"].minute) for row in test.rows] == [(True, 10)]
    # This one had arrived before the timer was to fire, though it is read after that.
    test = ProcessorTest(silent, COLUMNS).clock(at(0)).events(click(0)).events(click(1), arrived=at(590))
    assert test.clock(at(1189)).rows == []
    assert [row["silent"] for row in test.clock(at(1190)).events(click(1190)).rows] == [True, False]


def test_a_key_is_forgotten_after_its_time_to_live() -> None:
    test = ProcessorTest(pipeline(Silent, ttl="1 hour"), COLUMNS).events(click(0)).watermark("2026-01-01T00:30:00Z")
    assert test.state(user="u") == {"silent": True}
    test.watermark("2026-01-01T01:00:00Z")
    assert test.state(user="u") is None


def test_a_timer_at_the_end_of_its_keys_life_fires_before_that() -> None:
    test = ProcessorTest(pipeline(Debounce, ttl="5 seconds"), COLUMNS).events(click(0)).watermark(at(60))
    assert [(row["page"], row["clicks"]) for row in test.rows] == [("a", 1)]
    assert test.ledger["remembered"] == 0


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("large", r"processor Wrong: output: small: expected a number from -128 to 127, got 128"),
        ("unknown", r"processor Wrong: output: \['more'\] are no fields of it; it has \['small'\]"),
        ("state", r"processor Wrong: state: \['more'\] are no fields of it"),
        ("zone", r"processor Wrong: on_event: ValueError: timer 'late': expected an instant with a zone"),
        ("error", r"processor Wrong: on_event: KeyError: 'page'"),
    ],
)
def test_a_mistake_says_where_and_with_which_value(page: str, said: str) -> None:
    with pytest.raises(ProcessorError, match=said):
        ProcessorTest(pipeline(Wrong), COLUMNS).events(click(0, page)).watermark(at(60))


def test_a_definition_carries_the_code_of_its_processor_and_what_that_uses() -> None:
    step = pipeline(Debounce).steps[0]
    again = definition_from_json(pipeline(Debounce).to_json())
    assert again == pipeline(Debounce)
    assert "GAP = timedelta(seconds=5)" in step.code
    assert "class Silent" not in step.code
    test = ProcessorTest(again, COLUMNS).events(click(0)).watermark(at(60))
    assert len(test.rows) == 1


def test_a_processor_of_no_file_is_refused() -> None:
    space: dict[str, Any] = {"Processor": Processor}
    exec("class Typed(Processor):\n    output = {'a': 'INT'}\n    def on_event(self, *more): pass", space)
    with pytest.raises(DefinitionError, match="expected its class in a file"):
        Process(space["Typed"], by=("user",))


class Later(Debounce):
    """The same with another field, of a higher version."""

    version: ClassVar = 2
    state: ClassVar = {"page": "STRING", "clicks": "INT", "first": "STRING"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        super().on_event(key, event, state, timers)
        state["first"] = state["first"] or event["page"]

    def migrate(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {**super().migrate(state, version), "first": f"of version {version}"}


def test_a_later_version_reads_what_an_earlier_one_has_kept() -> None:
    before, after = (ProcessRunner(pipeline(each).steps[0], COLUMNS) for each in (Debounce, Later))
    state = before.state(None)
    state.fields.update(page="a", clicks=3)
    later = after.state(before.kept(state))
    assert later.fields == {"page": "a", "clicks": 3, "first": "of version 1"}
    with pytest.raises(ProcessorError, match="version 1 cannot read the state that version 2 has kept"):
        before.state(after.kept(later))


class Forgetful(Processor):
    """Keeps something, gives a row or forgets its key, as the page of the event says."""

    output: ClassVar = {"page": "STRING"}
    state: ClassVar = {"kept": "BOOLEAN"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> list[Mapping]:
        state["kept"] = None if event["page"] == "forget" else True
        return [{"page": "row"}] if event["page"] == "row" else []


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_how_many_events_a_row_has_does_not_depend_on_where_a_batch_ends(batch: int) -> None:
    runner = ProcessRunner(pipeline(Forgetful).steps[0], COLUMNS)
    pages = ["keep", "forget", "row", "keep", "row", "keep", "forget", "keep", "keep", "row"]
    events = [
        (n, n, n, f'{{"user":"u","page":"{page}","at":"1970-01-01T00:00:00.000000Z"}}') for n, page in enumerate(pages)
    ]
    kept, counted = None, []
    for begin in range(0, len(events), batch):
        state, taken = runner.state(kept), events[begin : begin + batch]
        counted += [given.events for given in runner.run('{"user":"u"}', state, taken, taken[-1][0])]
        kept = runner.kept(state)
    # Those before a key was forgotten are in no row of it.
    assert counted == [1, 2, 3]


class Retyped(Debounce):
    """Gives what its test asks for instead of what was kept."""

    version: ClassVar = 2
    state: ClassVar = {"page": "BOOLEAN", "clicks": "INT", "share": "DOUBLE", "at": "STRUCT<a: TIMESTAMP, b: INT>"}
    given: ClassVar[dict[str, Any]] = {}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        """Does nothing."""

    def migrate(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"page": None, **state["given"]} if "given" in state else super().migrate(state, version)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, None),
        ({"page": True, "clicks": 3, "share": 1, "at": {"a": "2026-01-01T00:00:00Z"}}, None),
        ({"page": "false"}, "in the form in which they are kept"),
        ({"clicks": 1.9}, "in the form in which they are kept"),
        ({"clicks": "3"}, "in the form in which they are kept"),
        ({"clicks": 2**40}, "clicks: expected a number from"),
        ({"clicks": "many"}, "invalid literal for int"),
        ({"click": 3}, "'click'] are no fields"),
        ({"at": {"a": "2026-01-01T00:00:00Z", "c": 1}}, "in the form in which they are kept"),
    ],
)
def test_what_is_migrated_is_what_it_says_or_halts(given: dict[str, Any], wrong: str | None) -> None:
    runner = ProcessRunner(pipeline(Retyped).steps[0], COLUMNS)
    kept = json.dumps({"version": 1, "state": {"given": given}, "timers": {}, "events": 0})
    if wrong is None:
        assert runner.state(kept).fields["clicks"] == given.get("clicks")
    else:
        with pytest.raises(ProcessorError, match="processor Retyped: migrate from version 1: ") as error:
            runner.state(kept)
        assert wrong in str(error.value)


class Twice(Processor):
    """Two timers at one instant."""

    output: ClassVar = {"name": "STRING"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        for name in "ab":
            timers.set(name, event["at"] + GAP)

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> list[Mapping]:
        return [{"name": name}]


def test_rows_of_timers_at_one_instant_can_be_told_apart() -> None:
    runner = ProcessRunner(pipeline(Twice).steps[0], COLUMNS)
    event = (0, 0, 0, '{"user":"u","page":"a","at":"1970-01-01T00:00:00.000000Z"}')
    given = list(runner.run('{"user":"u"}', runner.state(None), [event], 10**9))
    assert [(each.at_us, each.number, each.row) for each in given] == [
        (5_000_000, 0, '{"name":"a"}'),
        (5_000_000, 1, '{"name":"b"}'),
    ]


def test_a_raised_version_keeps_the_checkpoint_and_other_code_does_not() -> None:
    step = pipeline(Debounce).steps[0]
    other = pipeline(Debounce).model_copy(
        update={"steps": (step.model_copy(update={"code": step.code.replace("5", "6")}),)}
    )
    for before, after, compatibility, why in (
        (pipeline(Debounce), pipeline(Later), Compatibility.SAFE, "goes on through `migrate`"),
        (pipeline(Later), pipeline(Debounce), Compatibility.REBUILD, "may have kept what this one cannot read"),
        (pipeline(Debounce), other, Compatibility.REBUILD, "a raised `version` goes on with it"),
        (pipeline(Debounce), pipeline(Later, ttl="1 day"), Compatibility.REBUILD, "the state holds"),
    ):
        (change,) = changes(before, after)
        assert (change.compatibility, why in change.why) == (compatibility, True), change


def test_checkpoints_hold_a_bucket_and_its_keys_in_this_form() -> None:
    """Streams have written it: it must be read for ever."""
    step, start = pipeline(Debounce, ttl="1 minute").steps[0], 1767225600000000
    event = '{"user":"u","page":"a\\tb","at":"2026-01-01T00:00:0%d.000000Z"}'
    lines = [f'{start + s * 10**6}\t{s}\t{start + s * 10**6}\t{{"user":"u"}}\t{event % s}' for s in (7, 2)]
    kept = {
        '{"user":"u"}': '{"version":1,"state":{"page":"c","clicks":3},'
        f'"timers":{{"quiet":{start + 4 * 10**6},"\\u0000ttl":{start + 59 * 10**6}}},"events":3}}'
    }
    bucket = Bucket(ProcessRunner(step, COLUMNS), step, "\n".join(lines) + f'\n\n{start + 4 * 10**6}\t{{"user":"u"}}')
    assert list(bucket.advance([], start + 6 * 10**6, lambda keys: map(kept.get, keys), kept.update)) == []
    assert bucket.text == f'{lines[0]}\n\n{start + 7 * 10**6}\t{{"user":"u"}}'
    assert kept == {
        '{"user":"u"}': '{"version":1,"state":{"page":"a\\tb","clicks":4},'
        f'"timers":{{"quiet":{start + 7 * 10**6},"\\u0000ttl":{start + 62 * 10**6}}},"events":4}}'
    }


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("BIGINT", 2**63 - 1),
        ("STRING", "ab\t\n€"),
        ("BOOLEAN", True),
        ("DOUBLE", 0.1),
        ("DECIMAL(20, 3)", Decimal("12345678901234567.125")),
        ("TIMESTAMP", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("DATE", date(1, 1, 1)),
        ("ARRAY<TIMESTAMP>", [datetime(2026, 1, 1, tzinfo=UTC), None]),
        ("MAP<STRING, DECIMAL(4, 1)>", {"a": Decimal("1.5")}),
        ("STRUCT<a: INT, b: ARRAY<STRUCT<c: DATE>>>", {"a": None, "b": [{"c": date(2026, 1, 1)}]}),
    ],
)
def test_values_are_kept_as_they_are(sql_type: str, value: Any) -> None:
    load, dump = codec(sql_type)
    assert load(dump(value)) == value


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("INT", 1.0),
        ("INT", True),
        ("STRING", 1),
        ("DECIMAL(4, 1)", 0.5),
        ("DECIMAL(4, 1)", Decimal("0.25")),
        ("TIMESTAMP", datetime(2026, 1, 1)),
        ("ARRAY<INT>", "12"),
        ("MAP<STRING, INT>", {1: 1}),
        ("STRUCT<a: INT>", {"b": 1}),
    ],
)
def test_values_of_other_types_are_refused(sql_type: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        codec(sql_type)[1](value)


def test_the_example_of_the_guide_and_its_test_run_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/processors.md").read_text(encoding="utf-8")
    pipeline_file, test_file = re.findall(r"```python\n(# .*?)```", page, re.DOTALL)
    (tmp_path / "debounced_clicks.py").write_text(pipeline_file, encoding="utf-8")
    (tmp_path / "its_test.py").write_text(test_file.replace("spark_jobs.pipelines.", ""), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("its_test").test_the_last_of_a_burst_is_kept()


def test_an_epoch_goes_on_with_the_definition_that_was_raised_last(lake: Lake) -> None:
    first, later = pipeline(Debounce), pipeline(Later)
    epoch = begin_epoch(lake, first, 1)
    note_raised(lake, epoch, first)
    assert current_epoch(lake, first.name) == epoch
    # Until it has written a batch, the one before can go on.
    assert refuse_changed_definition(lake, later) == refuse_changed_definition(lake, first) == epoch

    note_raised(lake, epoch, later)
    note_raised(lake, epoch, later)  # as after a restart
    for found in (current_epoch(lake, first.name), epoch_at(lake, first.name, 1)):
        assert found is not None
        assert (found.definition, found.before) == (later.to_json(), (first.to_json(),))
        assert "before" not in json.loads(found.model_dump_json())
    step = later.steps[0]
    other = later.model_copy(update={"steps": (step.model_copy(update={"code": step.code + "\nmore = 1\n"}),)})
    for changed in (first, other):
        with pytest.raises(CheckpointError, match=r"its definition has changed \(steps\) since epoch 1"):
            refuse_changed_definition(lake, changed)
    with pytest.raises(CheckpointError, match=r"has changed \(steps\)"):
        note_raised(lake, epoch, other)
    # The next epoch begins with what it is begun with.
    assert begin_epoch(lake, first, 2).before == ()
    assert current_epoch(lake, first.name) == epoch_at(lake, first.name, 2)
