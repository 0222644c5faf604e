"""Pipelines over results: an ingest reads a result table, and what changes there, as events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.engine.sources.results import OtherResultError, RevisedError
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.commit_records.revisions import revisions, with_revised
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Aggregate, Ingest, Pipeline, Results, Sink, Table, Tumbling, Watermark
from tests.support import lakes
from tests.support.clicks import COLUMNS, RANKING, copy_of, events, feed, merged, pipeline, run_repair

UPSTREAM = pipeline()
KEY = ("window_start", "k")
VALUES = {"window_start": "TIMESTAMP", "k": "STRING", "n": "BIGINT", "total": "BIGINT", "revision": "BIGINT"}
CHANGES = {"change_kind": "STRING", "change_weight": "INT", "change_version": "BIGINT"}


def reading(revised: str = "retract", **more: Any) -> Ingest:
    source = Results("gold.activity", revised=revised, max_files_per_trigger=3)
    fields = {"name": "ingest_activity", "columns": {**VALUES, **CHANGES}, "sink": Sink("bronze.activity")}
    return Ingest(source=source, event_time="window_start", **fields | more)


SIGNED = {"t": "window_start", "k": "k", "n": "n * change_weight", "total": "total * change_weight"}
HOURLY = Pipeline(
    name="hourly",
    source=Table("bronze.activity", select=SIGNED),
    event_time="t",
    watermark=Watermark(delay="3 minutes"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"n": "sum(n)", "total": "sum(total)"}),),
    sink=Sink("gold.hourly"),
)


class Killed(Exception):
    pass


def run(spark: SparkSession, lake: Lake, ingest: Ingest, *, dies_at: str | None = None) -> None:
    """Reads all that is there; where it dies at a step of its first batch, nothing is left of the query."""

    def failpoint(step: str, _: int) -> None:
        if step == dies_at:
            raise Killed(step)

    query = IngestQuery(spark, lake, ingest, failpoint=failpoint)
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except Exception:
        if query.error is not None:
            raise query.error from None
        raise


def in_order(lake: Lake) -> list[dict[str, Any]]:
    found = sorted(lakes.rows(lake, "bronze.activity"), key=lambda row: row["_ingest_seq"] or 0)
    return [row for row in found if not row["_heartbeat"]]


def applied(lake: Lake, *, key: tuple[str, ...] = KEY) -> list[tuple[Any, ...]]:
    """The table that one has who carries out every event in order; each must fit what was there before it."""
    held: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    expected = {"insert": False, "before": True, "update": False, "delete": True}
    for event in in_order(lake):
        at, row = tuple(event[name] for name in key), tuple(event[name] for name in VALUES)
        assert (at in held) == expected[event["change_kind"]]
        if expected[event["change_kind"]]:
            assert held.pop(at) == row
        else:
            held[at] = row
    return sorted(held.values(), key=repr)


def held(lake: Lake) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in VALUES) for row in lakes.rows(lake, "gold.activity")), key=repr)


@dataclass
class Chain:
    lake: Lake
    before_repair: list[dict[str, Any]]


@pytest.fixture(scope="module")
def chain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """A chain: upstream's rows, an ingest that dies once, then a repair upstream, then the pipeline over it."""
    lake = Lake(str(tmp_path_factory.mktemp("chain"))).ensure_exists()
    batches = merged(events(3, 12, minutes=20), 4, 4, 4)
    bronze = feed(lake, batches[:2])
    lakes.run_all(spark, lake, (HOURLY, reading(), UPSTREAM), close=False)
    for batch in batches[2:]:
        bronze.append(batch)
    lakes.run(spark, lake, UPSTREAM)
    with pytest.raises(Killed):
        run(spark, lake, reading(), dies_at="result_committed")
    run(spark, lake, reading())
    before = in_order(lake)
    assert run_repair(spark, lake, UPSTREAM) is not None
    run(spark, lake, reading())
    lakes.run(spark, lake, HOURLY)
    return Chain(lake, before)


def test_the_events_of_a_result_are_its_rows_in_order(chain: Chain) -> None:
    assert {row["change_kind"] for row in chain.before_repair} == {"insert"}
    assert {row["change_kind"] for row in in_order(chain.lake)} >= {"insert", "before", "update"}
    assert applied(chain.lake) == held(chain.lake)


def test_a_repair_comes_after_what_was_there_and_names_its_revision(chain: Chain) -> None:
    came = in_order(chain.lake)[len(chain.before_repair) :]
    assert in_order(chain.lake)[: len(chain.before_repair)] == chain.before_repair
    assert {row["change_version"] for row in came}.isdisjoint(row["change_version"] for row in chain.before_repair)
    assert all(row["revision"] > 1 for row in came if row["change_kind"] == "update")


def test_each_event_of_a_result_has_an_id_of_its_own(chain: Chain) -> None:
    found = in_order(chain.lake)
    assert len({row["_event_id"] for row in found}) == len(found)
    assert [row["_ingest_seq"] for row in found] == list(range(len(found)))


def test_the_ledgers_of_a_chain_add_up(chain: Chain) -> None:
    lake = chain.lake
    written = [entry for _, entry in lakes.ledger(lake, UPSTREAM)]
    revised = [revision for _, revision in revisions(lake, "gold.activity", UPSTREAM.name, 1)]
    upstream = with_revised({"rows": sum(entry["rows"] for entry in written)}, revised)["rows"]
    found = in_order(lake)
    assert sum(row["change_weight"] for row in found) == upstream == len(lakes.rows(lake, "gold.activity"))
    read = sum(entry["read"] for _, entry in lakes.ledger(lake, reading()))
    assert read == len(found) == sum(entry["read"] for _, entry in lakes.ledger(lake, HOURLY))
    lakes.assert_balanced(lake, UPSTREAM)
    lakes.assert_balanced(lake, HOURLY)
    checked = audit.checks(lake, reading(), 1, lakes.ledger(lake, reading()))
    assert [text for holds, text in checked if not holds] == []


def test_a_pipeline_over_a_result_is_right_after_repairs_of_both(
    spark: SparkSession, chain: Chain, tmp_path: Path
) -> None:
    lake = copy_of(chain.lake, tmp_path / "copy")
    lakes.run_all(spark, lake, (HOURLY, reading(), UPSTREAM), close=True)
    run_repair(spark, lake, HOURLY)
    with duckdb.connect() as connection:
        connection.register("clicks", open_table(lake, "bronze.clicks").to_pyarrow_dataset())
        expected = connection.execute(
            """
            SELECT epoch_ms(t) // 3600000 * 3600000 AS hour, k, count(*), sum(2 * v) FROM clicks
            WHERE v >= 0 AND NOT _heartbeat GROUP BY ALL ORDER BY hour, k NULLS LAST
            """
        ).fetchall()
    found = [
        (lakes.ms(row["window_start"]), row["k"], row["n"], row["total"]) for row in lakes.rows(lake, "gold.hourly")
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len(expected) > 4


def test_what_goes_back_or_goes_away_upstream_is_read_as_changes(
    spark: SparkSession, chain: Chain, tmp_path: Path
) -> None:
    lake = copy_of(chain.lake, tmp_path / "copy")
    many = len(held(lake))
    open_table(lake, "gold.activity").restore(chain.before_repair[0]["change_version"])
    run(spark, lake, reading())
    assert applied(lake) == held(lake)
    assert 0 < len(held(lake)) < many
    reset(lake, UPSTREAM, empty_tables=True)
    run(spark, lake, reading())
    assert applied(lake) == held(lake) == []


def test_an_ingest_of_final_results_stops_at_a_revision_or_reads_it(
    spark: SparkSession, chain: Chain, tmp_path: Path
) -> None:
    lake = copy_of(chain.lake, tmp_path / "copy")
    final = reading("refuse", name="ingest_final", sink=Sink("bronze.final"))
    run(spark, lake, final)
    assert len(lakes.rows(lake, "bronze.final")) == len(held(lake))
    reset(lake, UPSTREAM, empty_tables=True)
    with pytest.raises(RevisedError, match=r"gold.activity .* changed or taken away by .*revised='refuse'.*reset"):
        run(spark, lake, final)
    assert len(lakes.rows(lake, "bronze.final")) > 0
    run(spark, lake, reading("read", name="ingest_final", sink=Sink("bronze.final")))
    assert sum(row["change_weight"] for row in lakes.rows(lake, "bronze.final")) == len(held(lake)) == 0


def test_columns_that_a_result_does_not_have_are_refused(spark: SparkSession, chain: Chain, tmp_path: Path) -> None:
    lake = copy_of(chain.lake, tmp_path / "copy")
    columns = {**VALUES, **CHANGES, "total": "INT", "units": "BIGINT"}
    other = reading(name="ingest_other", columns=columns, sink=Sink("bronze.other"))
    with pytest.raises(OtherResultError, match="total: declared int, the table has bigint; units: declared bigint"):
        run(spark, lake, other)


def test_a_live_result_is_followed_through_each_of_its_updates(spark: SparkSession, copy: Lake) -> None:
    run(spark, copy, reading())
    bronze = lakes.Bronze(copy, "bronze.clicks", COLUMNS, "t", _next=len(lakes.rows(copy, "bronze.clicks")))
    for batch in events(12, 7, minutes=20)[6:]:
        bronze.append(batch)
    lakes.run(spark, copy, RANKING)
    run(spark, copy, reading())
    assert {row["change_kind"] for row in in_order(copy)} >= {"insert", "before", "update"}
    assert applied(copy) == held(copy)
