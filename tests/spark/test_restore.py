"""Going back: the end is that of a run that was never disturbed, and every event is accounted for across it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import restoring
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import RestorePlan, RestoreRefusedError, plan_restore
from spark_jobs.operations.savepoint.execute import take_savepoint
from spark_jobs.spec import (
    Aggregate,
    AsOf,
    Deduplicate,
    Definition,
    Files,
    Hopping,
    Ingest,
    Join,
    Pipeline,
    Process,
    Session,
    Sink,
    Sliding,
    Table,
    TopN,
    Tumbling,
    Watermark,
)
from tests.support import lakes
from tests.support.changing import Pauses
from tests.support.clicks import MINUTE, START, audited, closed_ms, copy_of, events, feed, run_repair

_MEASURES = {"n": "count(*)", "total": "sum(v)"}


def reading(name: str, *steps: Any, mode: str = "append") -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=steps,
            sink=Sink(f"gold.{name}", mode=mode),
        )
    )


KINDS = {
    "windowed": reading(
        "windowed", Aggregate(window=Hopping("15 minutes", "5 minutes"), by=("k",), measures=_MEASURES)
    ),
    "visits": reading("visits", Aggregate(window=Session("5 minutes"), by=("k",), measures=_MEASURES)),
    "firsts": reading("firsts", Deduplicate(keys=("k", "v"), within="20 minutes")),
    "paid": reading("paid", Join(Table("bronze.paid"), on=("k",), event_time="u", within="10 minutes", how="left")),
    "held": reading("held", AsOf(Table("bronze.paid"), on=("k",), event_time="u", keep="20 minutes")),
    "before": reading("before", Sliding("15 minutes", by=("k",), measures=_MEASURES)),
    "pauses": reading("pauses", Process(Pauses, by=("k",))),
    "top": reading(
        "top",
        Aggregate(window=Tumbling("10 minutes"), by=("k",), measures=_MEASURES),
        TopN(2, order_by="total DESC, k"),
        mode="update",
    ),
}
HIDDEN = ("_epoch", "settled_at", "settled_version", "_source")


def pay(lake: Lake, batches: Iterable[int]) -> None:
    paid = lakes.Bronze(lake, "bronze.paid", {"k": pa.string(), "u": lakes.TIMESTAMP}, "u")
    for batch in batches:
        paid.append([{"k": k, "u": lakes.at(START + (batch * 10 + at) * MINUTE)} for k, at in (("a", 1), ("b", 7))])


def restored(lake: Lake, definition: Definition, **options: Any) -> tuple[RestorePlan, list[str]]:
    said: list[str] = []
    plan = plan_restore(lake, definition, **{"to": None, "to_batch": None, "by": "tests", **options})
    carry_out(lake, plan, said.append)
    return plan, said


def contents(lake: Lake, tables: Iterable[str]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: lakes.comparable(lakes.rows(lake, name), without=HIDDEN) for name in tables}


def tables_of(definition: Pipeline) -> list[str]:
    name = definition.sink.table
    beside = [f"{name}__late"]
    return [name, *beside, *([f"{name}__groups"] if definition.top_n else [])]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("windowed", "top"), id="windows and a ranking"),
        # A restore does not ask which kind of state it is. First events go back in
        # test_an_ingest_goes_back_with_its_readers_however_often_it_dies, state by key of two tables in
        # tests/services/test_keyed_steps.py.
        pytest.param(("windowed", "visits", "firsts", "paid"), id="other kinds", marks=pytest.mark.long),
    ],
)
def test_what_runs_on_after_a_restore_ends_as_if_nothing_had_happened(
    spark: SparkSession, lake: Lake, tmp_path: Path, kinds: Sequence[str]
) -> None:
    pipelines = [KINDS[name] for name in kinds]
    batches = events(7, batches=5, size=25)
    pay(lake, range(5))
    bronze = feed(lake, batches[:3])
    lakes.run_all(spark, lake, pipelines, close=False)
    calm = copy_of(lake, tmp_path / "calm")
    for each in pipelines:
        take_savepoint(lake, each.name, print, name="before", by="tests")
    # What is taken back: batches with late rows, and a repair between them.
    for batch in batches[3:]:
        bronze.append(batch)
    lakes.run_all(spark, lake, pipelines, close=False)
    assert run_repair(spark, lake, KINDS["windowed"]) is not None
    for each in pipelines:
        plan, said = restored(lake, each, to="before")
        assert plan.taken_back[-1].commits["batch"] >= 2, said
        assert lakes.ledger(lake, each)[-1][1].kind == "restore"
        assert contents(lake, tables_of(each)) == contents(calm, tables_of(each))
        lakes.assert_balanced(lake, each)
    assert len(lakes.rows(lake, "gold.windowed__late")) < len(batches[3]) * 5

    again = feed(calm, [])
    again._next = sum(map(len, batches[:3]))
    for batch in batches[3:]:
        again.append(batch)
    lakes.run_all(spark, lake, pipelines, close=False)
    lakes.run_all(spark, calm, pipelines, close=False)
    for each in pipelines:
        assert contents(lake, tables_of(each)) == contents(calm, tables_of(each)), each.name
        epoch, rows = current_epoch(lake, each.name), lakes.ledger(lake, each)
        assert epoch is not None
        assert epoch.number == 2
        numbers = [batch for batch, entry in rows if entry.kind == "batch"]
        assert numbers == [*range(len(numbers))]
        assert sum(entry["read"] for _, entry in rows) == sum(entry["read"] for _, entry in lakes.ledger(calm, each))
        lakes.assert_balanced(lake, each)
    assert lakes.rows(lake, "gold.windowed__late")
    # What the repair had counted is late again, and can be repaired again. Whether an audit agrees:
    # test_an_ingest_goes_back_with_its_readers_however_often_it_dies[None]
    assert run_repair(spark, lake, KINDS["windowed"]) is not None


def an_ingest(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_clicks",
        source=Files(str(folder), max_files_per_trigger=1),
        columns={"k": "STRING", "v": "BIGINT", "d": "DOUBLE", "t": "TIMESTAMP"},
        event_time="t",
        max_future=timedelta(days=36500),
        sink=Sink("bronze.clicks"),
    )


def land(folder: Path, batches: list[list[dict[str, Any]]], numbers: Iterable[int]) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        lines = [json.dumps({**row, "t": row["t"].isoformat()}) for row in batches[number]]
        # One row of each file is set aside.
        (file := folder / f"{number}.json").write_text("\n".join([*lines, '{"k": "bad", "v": "x"}']))
        os.utime(file, (1_790_000_000 + number,) * 2)


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """An ingest with a savepoint of its third batch, and two readers: one has read all, one lags behind."""
    folder = tmp_path_factory.mktemp("ingested")
    lake, batches = Lake(str(folder / "lake")).ensure_exists(), events(11, batches=5, size=20)
    ingest, (quick, slow) = an_ingest(folder / "landing"), READERS
    land(folder / "landing", batches, range(2))
    lakes.run_all(spark, lake, [ingest, quick, slow], close=False)
    land(folder / "landing", batches, range(2, 3))
    lakes.run_all(spark, lake, [ingest, quick], close=False)
    take_savepoint(lake, ingest.name, print, name="third", by="tests")
    land(folder / "landing", batches, range(3, 5))
    lakes.run_all(spark, lake, [ingest, quick], close=False)
    return lake


READERS = (KINDS["windowed"], KINDS["firsts"])


# Each step of a restore of one pipeline, with real kills: tests/chaos/test_killed_restore.py
_DEATHS = [pytest.param(step, marks=pytest.mark.long) for step in ("_put_back", "make_checkpoint", "_stamp", "begin")]


@pytest.mark.parametrize("step", [None, "_name_again", *_DEATHS])
def test_an_ingest_goes_back_with_its_readers_however_often_it_dies(
    spark: SparkSession, ingested: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    lake, ingest = copy_of(ingested, tmp_path / "lake"), an_ingest(Path(ingested.uri).parent / "landing")
    all_of_it, everything = contents(lake, ["bronze.clicks"]), [ingest, *READERS]
    if step is None:
        plan, _ = restored(lake, ingest, to="third")
        assert [member.pipeline for member in plan.record.members] == ["ingest_clicks", "firsts", "windowed"]
        assert len(lakes.rows(lake, "bronze.clicks")) == len(lakes.rows(lake, "bronze.clicks__quarantine")) * 20 == 60
    else:
        with monkeypatch.context() as dying:
            die_after(dying, step)
            with pytest.raises(KeyboardInterrupt):
                restored(lake, ingest, to="third")
    # Whoever starts first finishes it.
    lakes.run_all(spark, lake, [READERS[1]], close=False)
    lakes.run_all(spark, lake, everything, close=False)
    assert contents(lake, ["bronze.clicks"]) == all_of_it
    for each in everything:
        lakes.assert_balanced(lake, each)  # each event of the source was read once
        assert sum(entry["read"] for _, entry in lakes.ledger(lake, each)) == (105 if each is ingest else 100)
    if step is None:
        assert audited(spark, lake, READERS[0]).sound
        expected = by_duckdb_windows(lake)
        late = lakes.rows(lake, "gold.windowed__late")
        assert sum(n for *_, n in expected) == sum(row["n"] for row in lakes.rows(lake, "gold.windowed")) + sum(
            len(row["missed_windows"]) for row in late
        )


def by_duckdb_windows(lake: Lake) -> list[tuple[Any, ...]]:
    """Closed windows of 15 minutes, each 5 minutes, over all that bronze has."""
    size, every = 900_000, 300_000
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("clicks", open_table(lake, "bronze.clicks").to_pyarrow_dataset())
        return connection.execute(
            f"""
            WITH instants AS (SELECT k, epoch_ms(t) // {every} * {every} AS s FROM clicks),
            pairs AS (SELECT k, unnest([s - {2 * every}, s - {every}, s]) AS s FROM instants)
            SELECT s, k, count(*) FROM pairs WHERE s + {size} <= {closed_ms(lake, READERS[0])} GROUP BY s, k
            """
        ).fetchall()


def die_after(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The first time that a restore does this it dies at once afterwards."""
    real = getattr(restoring._Restoring, step)

    def dying(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(restoring._Restoring, step, dying)


def test_a_lost_checkpoint_comes_back_from_a_savepoint_of_its_tables(
    spark: SparkSession, ingested: Lake, tmp_path: Path
) -> None:
    lake, ingest = copy_of(ingested, tmp_path / "lake"), an_ingest(Path(ingested.uri).parent / "landing")
    with pytest.raises(RestoreRefusedError, match=r"bronze.clicks.* has batch 3 of epoch 1.*be there twice"):
        restored(lake, ingest, to="third", with_tables=False)
    take_savepoint(lake, ingest.name, print, name="newest", by="tests")
    before = contents(lake, ["bronze.clicks", "bronze.clicks__quarantine"])
    shutil.rmtree(Path(lake.uri, "_checkpoints/ingest_clicks/epoch-1"))
    with pytest.raises(CheckpointError, match="gone"):
        IngestQuery(spark, lake, ingest).start(until_caught_up=True)
    restored(lake, ingest, to="newest", with_tables=False)
    lakes.run_all(spark, lake, [ingest, READERS[0]], close=False)
    assert contents(lake, before) == before
    lakes.assert_balanced(lake, ingest)
