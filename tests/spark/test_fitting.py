"""What is refused without Spark, Spark refuses too; and what has nothing new is known without it."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.caught_up import is_caught_up
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.plan.fitting import misfits
from spark_jobs.spec import (
    Aggregate,
    Definition,
    DefinitionError,
    Files,
    Ingest,
    Pipeline,
    Sink,
    Table,
    Tumbling,
    Watermark,
    Where,
)

TYPES = (
    "STRING", "BOOLEAN", "TINYINT", "BIGINT", "DOUBLE", "DECIMAL(10,2)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY",
    "ARRAY<INT>", "STRUCT<a: INT>", "MAP<STRING,INT>",
)  # fmt: skip


def test_values_are_told_not_to_be_comparable_where_spark_says_so(spark: SparkSession) -> None:
    columns = {f"c{number}": each for number, each in enumerate(TYPES)}
    frame = spark.createDataFrame([], ", ".join(f"{name} {each}" for name, each in columns.items()))

    def by_spark(condition: str) -> bool:
        try:
            frame.where(condition)
        except AnalysisException:
            return False
        return True

    def by_us(condition: str) -> bool:
        steps, sink = (Where(condition),), Sink("gold.a")
        pipeline = Pipeline(name="a", source=Table("bronze.a"), event_time="c7", steps=steps, sink=sink)
        return not list(misfits(pipeline, {"bronze.a": columns}))

    conditions = [f"{left} = {right}" for left, right in itertools.combinations_with_replacement(columns, 2)]
    conditions += [f"{each} < {value}" for each in columns for value in ("1", "'x'", "true")]
    assert {each: by_us(each) for each in conditions} == {each: by_spark(each) for each in conditions}


INGEST = Ingest(
    name="ingest_things",
    source=Files("landing/things"),
    columns={"k": "STRING", "t": "TIMESTAMP"},
    event_time="t",
    sink=Sink("bronze.things"),
)
COUNTS = Pipeline(
    name="counts",
    source=Table("bronze.things"),
    event_time="t",
    watermark=Watermark(delay="1 minute"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"n": "count(*)"}),),
    sink=Sink("gold.counts"),
)


def put(lake: Lake, name: str, minute: int = 0) -> Path:
    path = Path(lake.uri, "landing/things", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"k": "a", "t": f"2026-11-01T10:{minute:02}:00Z"}) + "\n")
    return path


def run(spark: SparkSession, lake: Lake, *definitions: Definition) -> int:
    """How many batches a run had that ends when it is caught up."""
    driver = Driver(spark, lake, definitions)
    outcomes = driver.run_until_caught_up(close=False)
    assert not [outcome.error for outcome in outcomes.values() if outcome.error]
    return sum(query.total_batches for query in driver.queries.values())


def test_a_start_that_would_find_nothing_is_known_without_spark(spark: SparkSession, lake: Lake) -> None:
    def caught_up() -> tuple[bool, bool]:
        return is_caught_up(lake, INGEST), is_caught_up(lake, COUNTS)

    put(lake, "with space %25.json")
    put(lake, "below/deeper.json", 1)
    assert caught_up() == (False, False)
    run(spark, lake, INGEST, COUNTS)
    assert caught_up() == (True, True)
    # Spark is of the same opinion.
    assert run(spark, lake, INGEST, COUNTS) == 0
    # The ingest that has filled the table lets times be an hour ahead.
    refuse_misfit(lake, COUNTS)
    with pytest.raises(DefinitionError, match=r"`ingest_things` lets times of bronze\.things be 1 hour ahead"):
        refuse_misfit(lake, COUNTS.model_copy(update={"max_future": timedelta(minutes=1)}))

    hidden = put(lake, "_being_written.json", 2)
    assert caught_up() == (True, True)
    hidden.rename(hidden.with_name("written.json"))
    assert caught_up() == (False, True)
    run(spark, lake, INGEST)
    assert caught_up() == (True, False)
    run(spark, lake, COUNTS)
    assert caught_up() == (True, True)

    (link := Path(lake.uri, "landing/things/link.json")).symlink_to(Path(lake.uri, "landing/things/written.json"))
    assert caught_up() == (False, True)
    link.unlink()
    described = COUNTS.model_copy(update={"description": "another definition"})
    assert not is_caught_up(lake, described)
    epoch = current_epoch(lake, COUNTS.name)
    assert epoch is not None
    commits = Path(lake.uri, epoch.folder, "commits")
    (newest := max(commits.iterdir(), key=lambda each: int(each.name) if each.name.isdigit() else -1)).unlink()
    assert newest.name.isdigit()
    assert caught_up() == (True, False)
