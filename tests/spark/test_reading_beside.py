"""Pipelines that read a table while their ingest fills it, against the same ones that began when it was full."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.lake import Lake
from spark_jobs.spec import Enrich, Files, Ingest, Pipeline, Sink, Table
from tests.spark.test_driver import a_count, an_ingest, failures, land
from tests.support import lakes
from tests.support.waiting import PATIENCE_S, await_that

FILES = 5
INGEST = an_ingest()
READER = a_count().model_copy(update={"source": Table("bronze.events", max_files_per_trigger=2)})


@pytest.fixture
def beside(tmp_path: Path) -> Lake:
    return landed(tmp_path / "beside")


def landed(folder: Path) -> Lake:
    """A lake with files in the order of their time, each of which an ingest reads in a batch."""
    lake = Lake(str(folder)).ensure_exists()
    for number in range(FILES):
        land(lake, number, minute=5 * number)
    return lake


def batches(lake: Lake, pipeline: Pipeline = READER) -> list[tuple[Any, ...]]:
    """What each batch of a reader has read, and what it has made of it."""
    return [(number, row.reads, row.watermark_ms, row.terms) for number, row in lakes.ledger(lake, pipeline)]


def results(lake: Lake) -> list[Any]:
    return [lakes.comparable(lakes.rows(lake, table)) for table in ("gold.counts", "gold.counts__late")]


def read(lake: Lake) -> list[int]:
    """How many events each batch of the reader has read that has read some."""
    return [row["read"] for _, row in lakes.ledger(lake, READER) if row["read"]]


def one_after_the_other(spark: SparkSession, lake: Lake) -> None:
    for definitions in ([INGEST], [INGEST, READER]):
        outcomes = Driver(spark, lake, definitions).run_until_caught_up(close=definitions != [INGEST])
        assert failures(dict(outcomes)) == {}


class Watched:
    """A driver whose ingest waits, before it commits a batch, for something to be true of its reader.

    Args:
        spark: the session.
        lake: where.
        waits_for: number of the batch -> what it waits for.
        ingest: that waits.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        waits_for: dict[int, Callable[["Watched"], None]],
        ingest: Ingest = INGEST,
    ) -> None:
        self.driver = Driver(spark, lake, [ingest, READER], failpoint=self._reached)
        self.has_read = threading.Event()
        self.stop = threading.Event()
        self._waits_for = waits_for

    def _reached(self, point: str, batch_id: int) -> None:
        reader = self.driver.queries.get(READER.name)
        if point == "processed" and reader is not None and reader.total_batches:
            self.has_read.set()
        # Only ingests number their rows.
        if point == "numbered" and batch_id in self._waits_for:
            self._waits_for[batch_id](self)

    def waits_for_reader_to_wait(self) -> None:
        """Until the reader has found too little in its table for a full batch."""
        await_that(self._waits, "a reader that waits for a full batch")

    def _waits(self) -> bool:
        jvm: Any = self.driver.spark._jvm
        threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
        return any("GrowingTable.of(" in thread.toString() for thread in threads)

    def waits_for_reader_to_read(self) -> None:
        """Until the reader has committed a batch."""
        assert self.has_read.wait(PATIENCE_S)

    def run(self) -> dict[str, Outcome]:
        return dict(self.driver.run_until_caught_up(close=True, stop=self.stop))


def test_readers_read_beside_their_ingest_what_they_would_read_after_it(
    spark: SparkSession, beside: Lake, tmp_path: Path
) -> None:
    # With one file of two in the table the reader waits; with the fourth to come it has read two.
    waits_for = {1: Watched.waits_for_reader_to_wait, 3: Watched.waits_for_reader_to_read}

    assert failures(Watched(spark, beside, waits_for).run()) == {}

    after = landed(tmp_path / "after")
    one_after_the_other(spark, after)
    assert batches(beside) == batches(after)
    assert read(beside) == [6, 6, 3]
    assert results(beside) == results(after)
    lakes.assert_balanced(beside, READER)


def test_a_driver_that_is_stopped_leaves_no_batch_of_readers_that_wait(
    spark: SparkSession, beside: Lake, tmp_path: Path
) -> None:
    def stop(watched: Watched) -> None:
        watched.waits_for_reader_to_read()
        watched.waits_for_reader_to_wait()
        watched.stop.set()
        await_that(lambda: watched.driver.queries[INGEST.name].draining, "a driver that is told to stop")

    assert failures(Watched(spark, beside, {2: stop}).run()) == {}

    after = landed(tmp_path / "after")
    one_after_the_other(spark, after)
    assert batches(beside) == batches(after)[:1]
    assert failures(Watched(spark, beside, {}).run()) == {}
    # Not one batch more, by whose watermark events would be late.
    assert batches(beside) == batches(after)
    assert results(beside) == results(after)


@pytest.mark.parametrize("backlog", [True, False])
def test_a_table_with_a_backlog_is_read_in_batches_of_the_usual_size(
    spark: SparkSession, beside: Lake, monkeypatch: pytest.MonkeyPatch, backlog: bool
) -> None:
    reader = a_count().model_copy(update={"source": Table("bronze.events", max_files_per_trigger=None)})
    ingested = Driver(spark, beside, [INGEST] if backlog else []).run_until_caught_up(close=False)
    assert failures(dict(ingested)) == {}
    land(beside, FILES, minute=5 * FILES)
    # A file has 4 to 5 kB.
    monkeypatch.setattr("spark_jobs.engine.reading.BATCH_BYTES", 7_000)
    monkeypatch.setattr("spark_jobs.engine.reading.GROWING_BATCH_BYTES", 1)

    assert failures(dict(Driver(spark, beside, [INGEST, reader]).run_until_caught_up(close=False))) == {}

    assert read(beside) == ([6, 6, 6] if backlog else [3, 3, 3, 3, 3, 3])


def test_a_table_in_which_others_look_is_whole_before_they_begin(spark: SparkSession, beside: Lake) -> None:
    reader = READER.model_copy(
        update={"steps": (Enrich("bronze.keys", on=("k",), columns={"found": "k"}, missing="drop"), *READER.steps)}
    )
    keys = INGEST.model_copy(update={"name": "ingest_keys", "source": Files("keys"), "sink": Sink("bronze.keys")})
    folder = Path(beside.uri) / "keys"
    folder.mkdir()
    for number in range(3):
        event = {"number": number, "k": f"k{number}", "t": "2026-01-01T00:00:00Z"}
        (folder / f"{number}.json").write_text(json.dumps(event))
    begun = []

    def note(point: str, batch_id: int) -> None:
        if point == "numbered":
            begun.append(reader.name in driver.queries)

    driver = Driver(spark, beside, [INGEST, keys, reader], failpoint=note)
    assert failures(dict(driver.run_until_caught_up(close=True))) == {}

    assert begun == [False] * (FILES + 1)
    assert [row["unmatched"] for _, row in lakes.ledger(beside, reader) if row["read"]] == [0, 0, 0]


def test_what_an_ingest_has_read_before_it_fails_is_read(spark: SparkSession, beside: Lake) -> None:
    def fail(watched: Watched) -> None:
        watched.waits_for_reader_to_read()
        raise RuntimeError("no more")

    watched = Watched(spark, beside, {3: fail})
    outcomes = watched.run()

    assert set(failures(outcomes)) == {INGEST.name}
    assert read(beside) == [6, 3]
    assert ["bronze.events not closed" in warning for warning in watched.driver.warnings] == [True]
