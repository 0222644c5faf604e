"""A replay of quarantined rows: each row that passes by now is in bronze once and in the quarantine no more."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.commits import changes, small
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.lake.tables.quarantine import Selection
from spark_jobs.operations.replay.execute import ReplayRun, begin
from spark_jobs.operations.replay.outcome import ReplayOutcome
from spark_jobs.operations.replay.plan import plan_replay
from spark_jobs.spec import (
    Aggregate,
    Between,
    Files,
    Ingest,
    NotNull,
    OneOf,
    Pipeline,
    Satisfies,
    Sink,
    Table,
    Tumbling,
    Watermark,
)
from tests.support import lakes

COLUMNS = {"id": "BIGINT", "store": "STRING", "amount": "STRING", "units": "INT", "t": "TIMESTAMP"}
NUMBER = Satisfies("amount is a number", r"coalesce(amount RLIKE '^[0-9]+([.][0-9]+)?$', false)")
NUMBER_WITH_COMMA = Satisfies("amount is a number", r"coalesce(amount RLIKE '^[0-9]+([.,][0-9]+)?$', false)")
TOO_STRICT = (NotNull("store"), OneOf("store", ("a", "b")), NUMBER, Between("units", min=1))
AS_MEANT = (OneOf("store", ("a", "b", "c")), NUMBER_WITH_COMMA, Between("units", min=0))

HOURLY = Pipeline(
    name="hourly_events",
    source=Table("bronze.events"),
    event_time="t",
    watermark=Watermark(delay="10 minutes"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("store",), measures={"events": "count(*)"}),),
    sink=Sink("gold.hourly_events", mode="update"),
)


def an_ingest(folder: Path, rules: tuple[Any, ...] = TOO_STRICT) -> Ingest:
    return Ingest(
        name="ingest_events",
        source=Files(str(folder), max_files_per_trigger=1),
        columns=COLUMNS,
        event_time="t",
        rules=rules,
        sink=Sink("bronze.events"),
    )


def event(number: int, **changes: Any) -> dict[str, Any]:
    row = {"id": number, "store": "a", "amount": "1.50", "units": 1, "t": "2026-01-01T09:30:00Z"}
    return {name: value for name, value in (row | changes).items() if value is not ...}


def write(folder: Path, name: str, lines: list[str | dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    os.utime(path, (1_700_000_000 + len(list(folder.iterdir())),) * 2)


def ingest(
    spark: SparkSession, lake: Lake, definition: Ingest, failpoint: Callable[[str, int], None] | None = None
) -> None:
    query = IngestQuery(spark, lake, definition, **({"failpoint": failpoint} if failpoint else {}))
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except Exception:
        if query.error is not None:
            raise query.error from None
        raise


def replay(spark: SparkSession, lake: Lake, definition: Ingest, **more: Any) -> ReplayOutcome:
    plan = plan_replay(lake, definition, more.pop("selection", Selection()))
    noted = begin(lake, plan, by="ada", comment="the rule was wrong", slice_rows=more.pop("slice_rows", 300))
    return ReplayRun(spark, lake, plan.ingest, noted, **more).execute()


def assert_balanced(lake: Lake, definition: Ingest) -> list[str]:
    epoch = current_epoch(lake, definition.name)
    assert epoch is not None
    checks = audit.checks(lake, definition, epoch.number, lakes.ledger(lake, definition))
    assert [text for holds, text in checks if not holds] == []
    return [text for _, text in checks]


def assert_numbers_grow(lake: Lake) -> None:
    """Each `_ingest_seq` once, and greater from commit to commit."""
    table = DeltaTable(lake.table_uri("bronze.events"))
    below, seen = -1, set[int]()
    for version in range(table.version() + 1):
        table.load_as_version(version)
        rows = table.to_pyarrow_table(columns=["_ingest_seq"]).column(0).to_pylist()
        assert len(rows) == len(set(rows))
        new = set(rows) - seen
        assert not new or min(new) > below
        seen |= new
        below = max(seen, default=-1)


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lakes.rows(lake, "bronze.events"))


def reasons(lake: Lake) -> Counter[str]:
    return Counter(row["reason"] for row in lakes.rows(lake, "bronze.events__quarantine"))


class DriverDeath(Exception):
    pass


def dies_at(point: str, number: int = 0) -> Callable[[str, int], None]:
    def reached(at: str, which: int) -> None:
        if (at, which) == (point, number):
            raise DriverDeath

    return reached


FIVE_KINDS: dict[str, Callable[[int], str | dict[str, Any]]] = {
    "unparseable": lambda number: f'{{"id": {number}, "store": ',
    "amount is a number": lambda number: event(number, amount="1,50"),
    "not_null(store)": lambda number: event(number, store=...),
    "one_of(store)": lambda number: event(number, store="c"),
    "between(units, 1..)": lambda number: event(number, units=0 if number % 2 else -1),
}


COMMITTED = (("result_committed", 1), ("quarantine_committed", 0))


@pytest.mark.parametrize(
    "deaths",
    [
        COMMITTED,
        # Before each of these nothing more is written than before: [deaths0]
        pytest.param((("numbered", 0), ("releasing", 0)), marks=pytest.mark.long),
    ],
)
def test_rows_that_pass_by_now_arrive_once_however_often_a_replay_dies(
    spark: SparkSession, lake: Lake, tmp_path: Path, deaths: Sequence[tuple[str, int]]
) -> None:
    landing, good, each = tmp_path / "landing", 40, 20
    wrong = [(reason, number) for number, reason in enumerate([*FIVE_KINDS] * each, start=good)]
    lines: list[str | dict[str, Any]] = [event(number) for number in range(good)]
    write(landing, "first", lines[:20])
    write(landing, "second", [*lines[20:], *(FIVE_KINDS[reason](number) for reason, number in wrong)])
    before, now = an_ingest(landing), an_ingest(landing, AS_MEANT)
    ingest(spark, lake, before)
    lakes.run(spark, lake, HOURLY)
    set_aside = reasons(lake)
    assert set_aside == Counter(dict.fromkeys(FIVE_KINDS, each))

    plan = plan_replay(lake, now, Selection())
    assert dict(plan.found.reasons) == dict(set_aside)
    noted = begin(lake, plan, by="ada", comment="the rules were wrong", slice_rows=3 * each)
    for point, number in deaths:
        with pytest.raises(DriverDeath):
            ReplayRun(spark, lake, now, noted, dies_at(point, number)).execute()
        assert open_replay(lake, now.name) == noted
        assert_balanced(lake, now)
    # By other rules than those by which the first slices were judged: what is in bronze is known from bronze.
    done = ReplayRun(spark, lake, an_ingest(landing, TOO_STRICT), noted).execute()
    assert open_replay(lake, now.name) is None

    # Without a store `one_of` holds: its condition is null. Of those with few units the odd numbers have 0, not -1.
    passes = [number for reason, number in wrong if reason != "unparseable"]
    passes = [
        number for number in passes if number not in {n for r, n in wrong if r.startswith("between") and n % 2 == 0}
    ]
    assert ids(lake) == sorted([*range(good), *passes])
    assert sum(done.replayed.values()) == len(passes)
    assert reasons(lake) == Counter({"unparseable": each, "between(units, 1..)": 4 * each - len(passes)})
    assert dict(done.kept) == dict(reasons(lake))
    assert_numbers_grow(lake)
    (told,) = [text for text in assert_balanced(lake, now) if text.startswith("replay-")]
    assert f"rows read again {5 * each} = replayed {len(passes)} + set aside as before {5 * each - len(passes)}" in told
    (decision,) = decisions_of(lake, now.name)
    assert (decision["action"], decision["decided_by"], decision["decision_id"]) == ("replay", "ada", noted.run)

    # The stream goes on, in a new process and in its second batch, and the pipeline reads all of it.
    write(landing, "third", [event(9_001)])
    write(landing, "fourth", [event(9_002), event(9_003, units=-1)])
    ingest(spark, lake, now)
    assert ids(lake) == sorted([*range(good), *passes, 9_001, 9_002])
    assert_numbers_grow(lake)
    assert_balanced(lake, now)
    lakes.run(spark, lake, HOURLY)
    lakes.assert_balanced(lake, HOURLY)
    kinds = {number: FIVE_KINDS[reason](number) for reason, number in wrong}
    stores = Counter("a" if n not in kinds else json.loads(json.dumps(kinds[n])).get("store") for n in ids(lake))
    assert {row["store"]: row["events"] for row in lakes.rows(lake, "gold.hourly_events")} == dict(stores)


@pytest.mark.parametrize(
    "where",
    [
        "in its commit to bronze",
        # Wherever it is overtaken, its commit to bronze is refused or not begun: [in its commit to bronze]
        pytest.param("before its commit", marks=pytest.mark.long),
        pytest.param("in its commit to the quarantine", marks=pytest.mark.long),
        pytest.param("before a large commit", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_a_replay_overtakes_takes_other_numbers(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    landing = tmp_path / "landing"
    write(landing, "first", [event(0), event(1, store="c"), event(2), event(3, store="c")])
    ingest(spark, lake, an_ingest(landing))
    now = an_ingest(landing, AS_MEANT)
    write(landing, "second", [event(4), event(5, units=-1), event(6)])
    write(landing, "third", [event(7)])
    replayed: list[ReplayOutcome] = []

    def overtake() -> None:
        if not replayed:
            replayed.append(ReplayOutcome("", 0, {}, {}, {}, None, 0))
            replayed[0] = replay(spark, lake, now)

    append = small.append

    def overtaken_append(lake: Lake, table: str, *arguments: Any) -> None:
        if table == ("bronze.events" if where.endswith("bronze") else "bronze.events__quarantine"):
            overtake()
        append(lake, table, *arguments)

    if where.startswith("in its commit"):
        monkeypatch.setattr(small, "append", overtaken_append)
    if where == "before a large commit":
        monkeypatch.setattr(changes, "_FEW_ROWS", 0)
    second = []

    def reached(point: str, batch_id: int) -> None:
        if point == "numbered" and batch_id == 1:
            second.append(point)
            if where.startswith("before"):
                overtake()

    ingest(spark, lake, now, reached)
    assert len(second) == 2, "it took numbers twice"
    assert sum(replayed[0].replayed.values()) == 2
    assert ids(lake) == [0, 1, 2, 3, 4, 6, 7]
    assert_numbers_grow(lake)
    assert reasons(lake) == Counter({"between(units, 0..)": 1})
    assert_balanced(lake, now)


def test_a_replay_that_a_batch_overtakes_takes_other_numbers(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    write(landing, "first", [event(0), event(1, store="c"), event(2, store="c"), event(5, store="c", units=100)])
    ingest(spark, lake, an_ingest(landing))
    now = an_ingest(landing, (*AS_MEANT, Between("units", max=99, on_failure="fail")))
    write(landing, "second", [event(3), event(4)])
    numbered = []

    def reached(point: str, number: int) -> None:
        if point == "numbered":
            numbered.append(number)
            if len(numbered) == 1:
                ingest(spark, lake, now)

    replay(spark, lake, now, failpoint=reached)
    assert numbered == [0, 0]
    # A row at which the stream would stop stays where it is.
    assert ids(lake) == [0, 1, 2, 3, 4]
    assert reasons(lake) == Counter({"one_of(store)": 1})
    assert_numbers_grow(lake)
    assert_balanced(lake, now)


def test_values_ids_and_places_are_those_that_the_stream_would_have_given(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """The same file, read once by the rules as they are meant, and once by others and replayed."""
    lines: list[str | dict[str, Any]] = [event(0, store="c"), event(1, amount="2,5"), "no row", event(3, store="c")]
    here, there = lake, Lake(str(tmp_path / "there")).ensure_exists()
    landing = tmp_path / "landing"
    write(landing, "first", lines)
    ingest(spark, here, an_ingest(landing))
    now = an_ingest(landing, AS_MEANT)
    replay(spark, here, now)
    ingest(spark, there, now)
    without = ("_ingest_seq",)
    found, expected = (lakes.comparable(lakes.rows(each, "bronze.events"), without=without) for each in (here, there))
    assert found == expected
    assert len(found) == 3
    assert [row["raw"] for row in lakes.rows(here, "bronze.events__quarantine")] == ["no row"]
    schemas = [DeltaTable(each.table_uri("bronze.events")).schema() for each in (here, there)]
    assert pa.schema(schemas[0].to_arrow()) == pa.schema(schemas[1].to_arrow())
