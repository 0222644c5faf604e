"""Going back: the end is that of a run that was never disturbed, and every event is accounted for across it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import RestorePlan, plan_restore
from spark_jobs.operations.savepoint.execute import take_savepoint
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Definition,
    Hopping,
    Pipeline,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
)
from tests.support import lakes
from tests.support.clicks import audited, copy_of, events, feed, run_repair

pytestmark = pytest.mark.usefixtures("divided")

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
    "windowed": reading("windowed", Aggregate(window=Hopping("15 minutes", "5 minutes"), by=("k",), measures=_MEASURES)),
    "visits": reading("visits", Aggregate(window=Session("5 minutes"), by=("k",), measures=_MEASURES)),
    "firsts": reading("firsts", Deduplicate(keys=("k", "v"), within="20 minutes")),
    "top": reading(
        "top",
        Aggregate(window=Tumbling("10 minutes"), by=("k",), measures=_MEASURES),
        TopN(2, order_by="total DESC, k"),
        mode="update",
    ),
}
_HIDDEN = ("_epoch", "settled_at", "settled_version")


def restored(lake: Lake, definition: Definition, **options: Any) -> tuple[RestorePlan, list[str]]:
    said: list[str] = []
    plan = plan_restore(lake, definition, **{"to": None, "to_batch": None, "by": "tests", **options})
    carry_out(lake, plan, said.append)
    return plan, said


def contents(lake: Lake, tables: Iterable[str]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: lakes.comparable(lakes.rows(lake, name), without=_HIDDEN) for name in tables}


def tables_of(definition: Pipeline) -> list[str]:
    name = definition.sink.table
    beside = [f"{name}__late"]
    return [name, *beside, *([f"{name}__groups"] if definition.top_n else [])]


def test_what_runs_on_after_a_restore_ends_as_if_nothing_had_happened(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    batches, pipelines = events(7, batches=14, size=12), [*KINDS.values()]
    bronze = feed(lake, batches[:4])
    lakes.run_all(spark, lake, pipelines, close=False)
    calm = copy_of(lake, tmp_path / "calm")
    for each in pipelines:
        take_savepoint(lake, each.name, print, name="before", by="tests")
    # What is taken back: batches with late rows, a repair between them.
    for batch in batches[4:9]:
        bronze.append(batch)
    lakes.run_all(spark, lake, pipelines, close=False)
    assert run_repair(spark, lake, KINDS["windowed"]) is not None
    for batch in batches[9:]:
        bronze.append(batch)
    lakes.run_all(spark, lake, pipelines, close=False)
    late = {each.name: len(lakes.rows(lake, f"{each.sink.table}__late")) for each in pipelines}
    assert all(late.values())
    for each in pipelines:
        plan, said = restored(lake, each, to="before")
        assert plan.taken_back[-1].commits["batch"] >= 10, said
        assert lakes.ledger(lake, each)[-1][1].kind == "restore"
        assert contents(lake, tables_of(each)) == contents(calm, tables_of(each))
        lakes.assert_balanced(lake, each)

    again = feed(calm, [])
    again._next = sum(map(len, batches[:4]))
    for batch in batches[4:]:
        again.append(batch)
    lakes.run_all(spark, lake, pipelines, close=False)
    lakes.run_all(spark, calm, pipelines, close=False)
    for each in pipelines:
        assert contents(lake, tables_of(each)) == contents(calm, tables_of(each)), each.name
        epoch = current_epoch(lake, each.name)
        assert epoch is not None and epoch.number == 2
        assert [batch for batch, entry in lakes.ledger(lake, each) if entry.kind == "batch"] == [*range(14)]
        lakes.assert_balanced(lake, each)
    assert audited(spark, lake, KINDS["windowed"]).sound
    # What the repair had counted is late again, and can be repaired again.
    assert run_repair(spark, lake, KINDS["windowed"]) is not None
    assert audited(spark, lake, KINDS["windowed"]).sound
    lakes.assert_balanced(lake, KINDS["windowed"])
