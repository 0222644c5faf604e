"""Columns whose names are words of SQL or signs: whatever is done to their tables gives what plain names give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.heartbeats import Front, Heartbeats
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.execute import recount
from spark_jobs.operations.audit.plan import Audit, look, plan_recount
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.quality.added import added
from spark_jobs.quality.frames import SparkRows
from spark_jobs.quality.suites import RowCheck
from spark_jobs.spec import (
    Aggregate,
    Between,
    Deduplicate,
    Enrich,
    Files,
    Hopping,
    Ingest,
    Join,
    Late,
    NotNull,
    OneOf,
    Pipeline,
    Select,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
)
from spark_jobs.spec.names import in_spark
from tests.support import lakes
from tests.support.clicks import (
    COLUMNS,
    MINUTE,
    START,
    assert_same,
    by_duckdb,
    events,
    merged,
    run_backfill,
    run_repair,
    with_duplicates,
)

PLAIN = {name: name for name in ("k", "v", "d", "t", "w", "n", "total", "mean", "u", "paid", "label")}
WORDS = {
    "k": "order",
    "v": "when",
    "d": "values",
    "t": "at",
    "w": "end",
    "n": "from",
    "total": "case",
    "mean": "desc",
    "u": "window",
    "paid": "table",
    "label": "column",
}
SIGNS = {
    "k": 'say"',
    "v": "event:value",
    "d": "@d",
    "t": "event-time",
    "w": "w/2",
    "n": "offset",
    "total": "total$",
    "mean": "mean%",
    "u": "@timestamp",
    "paid": "paid?",
    "label": "#label",
}

# Of each kind some, so that one run asks of both.
MIXED = {**WORDS, **{name: SIGNS[name] for name in ("v", "t", "mean", "u", "label")}}

Names = Mapping[str, str]


def _sql(names: Names) -> dict[str, str]:
    return {name: in_spark(given) for name, given in names.items()}


def windowed(names: Names, *, window: Any, mode: str = "append", top: bool = False) -> Pipeline:
    sql = _sql(names)
    measures = {
        names["n"]: "count(*)",
        names["total"]: f"sum({sql['w']})",
        names["mean"]: f"avg({sql['d']})",
    }
    steps: list[Any] = [
        Where(f"{sql['v']} >= 0"),
        Select({names["w"]: f"{sql['v']} * 2"}),
        Aggregate(window=window, by=(names["k"],), measures=measures),
    ]
    if top:
        steps.append(TopN(2, order_by=f"{sql['total']} DESC, {sql['k']}"))
    late: dict[str, Any] = {"late": Late.UPDATE, "grace": "2 minutes"} if mode == "update" else {}
    return _pipeline(names, tuple(steps), mode=mode, **late)


def _pipeline(
    names: Names, steps: tuple[Any, ...], *, mode: str = "append", waits: bool = True, **late: Any
) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name="activity",
            source=Table("bronze.clicks"),
            event_time=names["t"],
            watermark=Watermark(**{"delay": "3 minutes", **late}) if waits else None,
            steps=steps,
            sink=Sink("gold.activity", mode=mode),  # type: ignore[arg-type]
        )
    )


def fed(lake: Lake, names: Names, batches: Iterable[list[dict[str, Any]]]) -> lakes.Bronze:
    columns = {names[name]: kind for name, kind in COLUMNS.items()}
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, names["t"])
    for batch in batches:
        bronze.append([{names[name]: value for name, value in row.items()} for row in batch])
    return bronze


def contents(lake: Lake, names: Names, *tables: str) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of tables, by the plain names of their columns; without how often they were revised."""
    plain = {given: name for name, given in names.items()}
    found = {}
    for table in tables:
        rows = [{plain.get(name, name): value for name, value in row.items()} for row in lakes.rows(lake, table)]
        for row in rows:
            for name in ("settled_at", "revision", "final_after"):
                row.pop(name, None)
            if row.get("mean") is not None:
                row["mean"] = round(row["mean"], 9)
        found[table] = lakes.comparable(rows)
    return found


def audited(spark: SparkSession, lake: Lake, definition: Pipeline) -> Audit:
    found = look(lake, definition)
    planned = plan_recount(lake, definition, None, found)
    return planned if isinstance(planned, Audit) else recount(spark, *planned, found)


Life = list[dict[str, list[tuple[Any, ...]]]]
"""What the tables of a pipeline held after its stream, and after a repair."""


def lived(spark: SparkSession, lake: Lake, definition: Pipeline, names: Names, *tables: str) -> Life:
    """Runs and repairs a pipeline; a backfill computes as a repair does (tests/spark/test_backfill.py)."""
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    streamed = contents(lake, names, *tables)
    assert run_repair(spark, lake, definition) is not None
    lakes.assert_balanced(lake, definition)
    return [streamed, contents(lake, names, *tables)]


@pytest.fixture
def other(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "other")).ensure_exists()


GIVEN = pytest.mark.parametrize(
    "names",
    [
        pytest.param(MIXED, id="mixed"),
        # [mixed] has of each kind some, and none that is plain.
        pytest.param(WORDS, id="words", marks=pytest.mark.long),
        pytest.param(SIGNS, id="signs", marks=pytest.mark.long),
    ],
)
RESULT, LATE, GROUPS = "gold.activity", "gold.activity__late", "gold.activity__groups"


@GIVEN
def test_a_live_ranking_under_such_names_is_what_duckdb_says(
    spark: SparkSession, lake: Lake, other: Lake, names: Names
) -> None:
    batches, window = events(5, batches=3, size=12, minutes=20), Hopping("15 minutes", "10 minutes")
    fed(lake, names, batches)
    fed(other, PLAIN, batches)
    definition = windowed(names, window=window, mode="update", top=True)
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    assert lakes.rows(lake, LATE)
    assert run_repair(spark, lake, definition) is not None
    lakes.assert_balanced(lake, definition)
    columns = [names[name] for name in ("k", "n", "total", "mean")]
    rows = lakes.rows(lake, RESULT)
    found = [(lakes.ms(row["window_start"]), *(row[column] for column in columns)) for row in rows]
    assert_same(found, by_duckdb(other, window, closed_ms=2**50, top=True))

    recounted = audited(spark, lake, definition)
    assert recounted.sound, audit_text(recounted)
    # A backfill reads what an audit reads, and writes as a repair does.
    assert recounted.rows


# test_a_live_ranking_under_such_names_is_what_duckdb_says has the same steps.
@pytest.mark.long
@GIVEN
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"window": Hopping("15 minutes", "10 minutes"), "mode": "update", "top": True}, id="top, updated"),
        pytest.param({"window": Tumbling("10 minutes")}, id="tumbling"),
        pytest.param({"window": Session("4 minutes")}, id="session"),
    ],
)
def test_windows_live_as_under_plain_names(
    spark: SparkSession, lake: Lake, other: Lake, names: Names, kind: dict[str, Any]
) -> None:
    batches = events(5, batches=3, size=12, minutes=20)
    tables = (RESULT, LATE, *((GROUPS,) if kind.get("top") else ()))
    fed(lake, names, batches)
    fed(other, PLAIN, batches)
    expected = lived(spark, other, windowed(PLAIN, **kind), PLAIN, *tables)
    definition = windowed(names, **kind)
    assert lived(spark, lake, definition, names, *tables) == expected
    found = audited(spark, lake, definition)
    assert found.sound, audit_text(found)
    assert found.rows
    run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    lakes.assert_balanced(lake, definition)
    assert contents(lake, names, RESULT)[RESULT] == expected[0][RESULT]


@GIVEN
def test_of_each_key_one_event_is_there_under_such_names(spark: SparkSession, lake: Lake, names: Names) -> None:
    batches = merged(with_duplicates(3), 2, 1, 6)
    fed(lake, names, batches)
    definition = _pipeline(names, (Deduplicate(names["k"], within="1 hour"),))
    lived(spark, lake, definition, names, RESULT, LATE)
    given = {(row["k"], row["v"], row["t"]) for batch in batches for row in batch}
    found = [tuple(row[names[name]] for name in ("k", "v", "t")) for row in lakes.rows(lake, RESULT)]
    assert set(found) <= given
    assert sorted(key for key, *_ in found) == sorted({key for key, *_ in given})


# Rows of events, late ones and a repair under such names: test_of_each_key_one_event_is_there_under_such_names.
# The SQL of a join: tests/unit/test_names.py::TestPlans::test_where_rows_lie_is_sql_over_the_column
@pytest.mark.long
@GIVEN
def test_two_streams_meet_as_under_plain_names(spark: SparkSession, lake: Lake, other: Lake, names: Names) -> None:
    batches = events(9, batches=3, size=8)

    def joined(to: Lake, given: Names) -> Pipeline:
        fed(to, given, batches)
        columns = {given["k"]: pa.string(), given["paid"]: pa.int64(), given["u"]: lakes.TIMESTAMP}
        right = lakes.Bronze(to, "bronze.paid", columns, given["u"])
        for number in (0, 1, 2):
            late = 40 if number == 2 else 0
            row = {given["k"]: "a", given["paid"]: number}
            at = lakes.at(START + (10 * number + 5 - late) * MINUTE)
            right.append([{**row, given["u"]: at}], ids=[f"r{number}"])
        join = Join(Table("bronze.paid"), on=(given["k"],), event_time=given["u"], within="5 minutes", how="full")
        return _pipeline(given, (join,))

    expected = lived(spark, other, joined(other, PLAIN), PLAIN, RESULT, LATE)
    assert lived(spark, lake, joined(lake, names), names, RESULT, LATE) == expected


@GIVEN
def test_columns_are_looked_up_under_such_names(spark: SparkSession, lake: Lake, names: Names) -> None:
    fed(lake, names, events(5, batches=2, size=6))
    known = lakes.Bronze(lake, "silver.known", {names["k"]: pa.string(), names["paid"]: pa.int64()}, names["t"])
    known.append([{names["k"]: key, names["paid"]: number} for number, key in enumerate("ab")])
    enrich = Enrich("silver.known", on=(names["k"],), columns={names["label"]: names["paid"]}, missing="quarantine")
    definition = _pipeline(names, (enrich,), waits=False)
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    rows = lakes.rows(lake, RESULT)
    assert rows
    assert {(row[names["k"]], row[names["label"]]) for row in rows} <= {("a", 0), ("b", 1)}


def _landed(lake: Lake, names: Names, minutes: Iterable[int]) -> Ingest:
    """An ingest of JSON, and its input."""
    folder = Path(lake.uri, "landing")
    folder.mkdir(exist_ok=True)
    for minute in minutes:
        time = f"{lakes.at(START + minute * MINUTE):%Y-%m-%dT%H:%M:%SZ}"
        row = {names["k"]: f"k{minute}", names["v"]: minute, names["t"]: time}
        (folder / f"{minute}.json").write_text(json.dumps(row) + "\n" + json.dumps({**row, names["v"]: -5}) + "\n")
    return Ingest(
        name="ingest_clicks",
        source=Files("landing"),
        columns={names["k"]: "STRING", names["v"]: "BIGINT", names["t"]: "TIMESTAMP"},
        event_time=names["t"],
        event_id=names["k"],
        rules=(Between(names["v"], min=0), OneOf(names["k"], tuple(f"k{n}" for n in range(60)))),
        idle_after=timedelta(minutes=1),
        sink=Sink("bronze.clicks"),
    )


# Times of other columns: tests/spark/test_driver.py::test_readers_that_go_by_other_times_are_closed_by_those, computed
# ones: test_a_reader_whose_time_is_computed_moves_no_other_one in there; such names, both as they are and computed:
# test_silence_moves_the_watermark_of_such_a_time
@pytest.mark.long
@GIVEN
def test_a_run_closes_what_it_has_read_under_such_names(spark: SparkSession, lake: Lake, names: Names) -> None:
    ingest = _landed(lake, names, (0, 7, 19))
    sql = _sql(names)
    counts = Aggregate(window=Tumbling("10 minutes"), by=(names["k"],), measures={names["n"]: "count(*)"})
    by_name = _pipeline(names, (counts,))
    renamed = Table("bronze.clicks", select={names["u"]: sql["t"], names["k"]: sql["k"]})
    computed = Table("bronze.clicks", select={names["u"]: f"{sql['t']} + INTERVAL 1 HOUR", names["k"]: sql["k"]})
    others = [
        by_name.model_copy(
            update={"name": name, "source": source, "event_time": names["u"], "sink": Sink(f"gold.{name}")}
        )
        for name, source in (("renamed", renamed), ("computed", computed))
    ]
    definitions = [ingest, by_name, *others]
    lakes.run_all(spark, lake, definitions, close=True)
    for definition in (by_name, *others):
        lakes.assert_balanced(lake, definition)
        assert sum(row[names["n"]] for row in lakes.rows(lake, definition.sink.table)) == 3, definition.name
    assert sum(row["_heartbeat"] for row in lakes.rows(lake, "bronze.clicks")) == 1
    set_aside = lakes.rows(lake, "bronze.clicks__quarantine")
    assert [row["reason"] for row in set_aside] == [f"between({names['v']}, 0..)"] * 3
    assert all(row["detail"] == f"{names['v']} is -5" for row in set_aside)


@GIVEN
def test_silence_moves_the_watermark_of_such_a_time(spark: SparkSession, lake: Lake, names: Names) -> None:
    ingest = _landed(lake, names, (0, 7))
    lakes.run_all(spark, lake, [ingest], close=False)
    query = IngestQuery(spark, lake, ingest)
    query.start(until_caught_up=True).awaitTermination()
    query.beat(90_000, ())
    (beat,) = (row for row in lakes.rows(lake, "bronze.clicks") if row["_heartbeat"])
    assert lakes.ms(beat[names["t"]]) == START + 7 * MINUTE + 90_000
    # By the rows as by the log.
    open_table(lake, "bronze.clicks").optimize.compact()
    time = in_spark(names["t"])
    later = f"{time} + INTERVAL 1 HOUR"
    newest, hour = START + 7 * MINUTE, 60 * MINUTE
    assert Heartbeats(spark, lake).fronts("bronze.clicks", [time, later], timedelta(days=3650)) == {
        time: Front(newest, newest + 90_000),
        later: Front(newest + hour, newest + hour + 90_000),
    }


@GIVEN
def test_spark_checks_rules_on_such_columns(spark: SparkSession, lake: Lake, names: Names) -> None:
    fed(lake, names, events(5, batches=1, size=20))
    opened = open_table(lake, "bronze.clicks")
    new = added(lake, "bronze.clicks", opened, None, revised=False, watermark=None)
    rules = [RowCheck(NotNull(names["k"]), "fail"), RowCheck(Between(names["v"], min=2), "fail")]
    rows = SparkRows(spark, lake, "bronze.clicks", new)
    plain = lakes.rows(lake, "bronze.clicks")
    few = sum(row[names["v"]] < 2 for row in plain)
    assert rows.broken(rules) == [sum(row[names["k"]] is None for row in plain), few]
    assert all(set(sample) == {names["v"]} for sample in rows.samples(rules[1]))
