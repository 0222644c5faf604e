"""Each alert is told once when its cause happens and once when it is gone, by the monitor, on a real lake.

One driver of each of two jobs runs in the tests' own Spark session, as `tidemark drive` runs it. What a supervisor, or
Airflow, has to do with an alert is tested where those are.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.control.monitoring.alert_log import Change
from spark_jobs.control.monitoring.monitor import Report, look, mark_reported
from spark_jobs.control.supervision import status, terms
from spark_jobs.control.supervision.launchers import LocalProcess
from spark_jobs.control.supervision.pulse import PipelinePulse
from spark_jobs.job import loop, process, steps
from spark_jobs.job.loop import Fence, JobDriver
from spark_jobs.job.process import Heart
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Alerts, Definition, Sink, Table
from tests.control import streams
from tests.control.streams import WatchedLauncher
from tests.support import lakes
from tests.support.builders import a_batch, a_pipeline, a_running_total, a_stamp, an_aggregate, an_ingest, write
from tests.support.deploying import deploy
from tests.support.lakes import TIMESTAMP, Bronze

COLUMNS = {"product_id": pa.string(), "quantity": pa.int64(), "sold_at": TIMESTAMP}
PATIENCE_S = 240.0
HOLDS = "held"


class Gate(Fence):
    """A fence that can hold up the batches of its job, as a store does that does not answer."""

    def __init__(self, lake: Lake, job: str, term: int) -> None:
        super().__init__(lake, job, term)
        self.open = threading.Event()
        self.open.set()

    def check(self, point: str = "", batch_id: int = 0) -> None:
        super().check(point, batch_id)
        if point == "planned":
            self.open.wait()


class Stage:
    """A lake with the drivers of its jobs, and what its monitor has told so far."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.told: list[Change] = []
        self.gates: dict[str, Gate] = {}
        self.reports: dict[str, Report] = {}
        self._threads: list[tuple[Heart, threading.Thread]] = []
        self._stop = threading.Event()

    def drive(self, spark: SparkSession, job: str) -> None:
        """What a supervisor and `tidemark drive` do, without the processes."""
        term = terms.Term(host=terms.this_host(), supervisor="a test", begun_at=datetime.now(UTC))
        terms.records(self.lake, job).append(1, term)
        running = status.Status(job=job, state="running", since=datetime.now(UTC), term=1, order=1)
        status.records(self.lake, job).append(1, running)
        self.gates[job] = Gate(self.lake, job, 1)
        heart = Heart(self.lake, job, 1, None, self.gates[job])
        heart.driver = JobDriver(spark, self.lake, job, 1, fence=self.gates[job])
        thread = threading.Thread(target=self._run, args=(heart.driver,), name=job, daemon=True)
        thread.start()
        heart.start()
        self._threads.append((heart, thread))

    def _run(self, driver: JobDriver) -> None:
        # It ends where nothing is to run, as between two tests; a supervisor would start it again with the next order.
        while not self._stop.wait(0.1):
            driver.run(self._stop)

    def end(self) -> None:
        for gate in self.gates.values():
            gate.open.set()
        self._stop.set()
        for heart, thread in self._threads:
            thread.join(timeout=60)
            heart.end("the tests are over")

    def deploy(self, definition: Definition) -> int:
        """Orders that a pipeline runs; its generation."""
        return deploy(self.lake, [definition])[0].generation

    def stop(self, *names: str) -> None:
        """Orders that pipelines end, and waits until they have."""
        orders.stop(self.lake, names, by="a test")
        self.until(lambda: all((seen := self.seen(name)) and seen.state == "stopped" for name in names))

    def seen(self, name: str) -> PipelinePulse | None:
        found = (job_now(self.lake, job).pipeline(name) for job in self.gates)
        return next(filter(None, found), None)

    def until(self, holds: Callable[[], Any], every_s: float = 0.25) -> None:
        """Waits for what a driver says."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{self.reports}"
            time.sleep(every_s)

    def until_committed(self, name: str, batch_id: int, generation: int = 1) -> None:
        """Waits until a driver has told of a batch."""
        self.until(
            lambda: (
                (seen := self.seen(name))
                and seen.generation >= generation
                and seen.figures.batch_id is not None
                and seen.figures.batch_id >= batch_id
            )
        )

    def look(self) -> None:
        seen = look(self.lake, now=datetime.now(UTC))
        mark_reported(self.lake, seen)
        self.told += seen.changes
        self.reports = {report.pipeline: report for report in seen.reports}

    def until_told(self, name: str, *kinds: str, began: bool) -> None:
        """Lets the monitor look until it has told that breaches of a pipeline began, or that they cleared."""

        def all_told() -> bool:
            self.look()
            return set(kinds) <= {c.kind for c in self.told if (c.pipeline, c.began) == (name, began)}

        # Seldom: a look reads the tables of all pipelines, and takes the drivers their processor.
        self.until(all_told, every_s=1.0)

    def of(self, name: str) -> dict[str, list[bool]]:
        """Kind -> each change of a pipeline: True where it began, False where it cleared."""
        found: dict[str, list[bool]] = {}
        for change in self.told:
            if change.pipeline == name:
                found.setdefault(change.kind, []).append(change.began)
        return found

    def logged(self, name: str) -> dict[str, list[str]]:
        """The same from `ops.alerts`."""
        found: dict[str, list[str]] = {}
        for row in sorted(lakes.rows(self.lake, "ops.alerts"), key=lambda row: row["reported_at"]):
            if row["pipeline"] == name:
                found.setdefault(row["kind"], []).append(row["event"])
        return found

    def assert_told_once(self, name: str, *kinds: str) -> None:
        """Nothing but these was told, each once when it began and once when it cleared."""
        assert self.of(name) == {kind: [True, False] for kind in kinds}
        assert self.logged(name) == {kind: ["began", "cleared"] for kind in kinds}

    def message(self, name: str, kind: str) -> str:
        return next(c.message for c in self.told if (c.pipeline, c.kind, c.began) == (name, kind, True))


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(Lake(str(tmp_path_factory.mktemp("alerts") / "lake")).ensure_exists())
    with pytest.MonkeyPatch.context() as patch:
        # What a driver says is waited for here some fifty times.
        patch.setattr(process, "PULSE_EVERY_S", 0.5)
        patch.setattr(loop, "_ORDERS_EVERY_S", 0.5)
        for job in ("streams", HOLDS):
            stage.drive(spark, job)
        yield stage
        stage.end()


def sales(count: int, at: datetime, *, products: int = 1) -> list[dict[str, Any]]:
    return [{"product_id": f"p{i % products}", "quantity": 1, "sold_at": at} for i in range(count)]


def bronze(stage: Stage, name: str, events: Sequence[Mapping[str, Any]]) -> Bronze:
    """A bronze table of its own for each pipeline, with its first batch."""
    table = Bronze(stage.lake, f"bronze.{name}", COLUMNS, "sold_at")
    table.append(events)
    return table


def windows(name: str, **limits: Any) -> Definition:
    """Units of each product and hour."""
    return a_pipeline(
        name=name,
        source=Table(f"bronze.{name}"),
        sink=Sink(f"gold.{name}"),
        alerts=Alerts(**limits) if limits else Alerts(),
    )


def totals(name: str, *, job: str = "streams", units: str = "sum(quantity)", **limits: Any) -> Definition:
    """Units of each product, for ever: no batch without data comes after one with data."""
    return a_running_total(
        name=name,
        source=Table(f"bronze.{name}"),
        sink=Sink(f"gold.{name}", mode="update"),
        steps=(an_aggregate(window=None, by=("product_id",), measures={"units": units}),),
        job=job,
        alerts=Alerts(**limits),
    )


def test_old_events_hold_back_the_watermark_and_fill_the_state(stage: Stage) -> None:
    now = datetime.now(UTC)
    table = bronze(stage, "old", sales(300, now - timedelta(days=3), products=300))
    stage.deploy(windows("old", max_state_rows=200))
    stage.until_told("old", "watermark-lag", "state-rows", began=True)
    assert "300 groups; the limit is 200" in stage.message("old", "state-rows")

    table.append(sales(120, now))
    stage.until_told("old", "watermark-lag", "state-rows", began=False)

    # Then 100 of 520 events come too late, and later 100 of 1,520.
    table.append(sales(100, now - timedelta(hours=4)))
    stage.until_told("old", "late-share", began=True)
    assert "100 of 520 events of the last ten minutes were late (19.2%)" in stage.message("old", "late-share")
    table.append(sales(1000, now))
    stage.until_told("old", "late-share", began=False)
    stage.assert_told_once("old", "watermark-lag", "state-rows", "late-share")
    stage.stop("old")


def test_rows_that_cannot_be_parsed_are_told_by_their_share(stage: Stage) -> None:
    landing = Path(stage.lake.uri) / "landing/sales"
    landing.mkdir(parents=True)
    good = json.dumps({"sale_id": "s", "quantity": 1, "sold_at": datetime.now(UTC).isoformat()})

    def arrive(number: int, *lines: str) -> None:
        hidden = landing / f".{number}.json"
        hidden.write_text("\n".join(lines))
        os.rename(hidden, landing / f"{number}.json")

    arrive(1, *[good] * 100, *["{"] * 50)
    stage.deploy(an_ingest(alerts=Alerts(max_quarantine_share=0.2)))
    stage.until_told("ingest_sales", "quarantine-share", began=True)
    assert "50 of 150 events" in stage.message("ingest_sales", "quarantine-share")
    arrive(2, *[good] * 300)
    stage.until_told("ingest_sales", "quarantine-share", began=False)
    stage.assert_told_once("ingest_sales", "quarantine-share")
    stage.stop("ingest_sales")


def test_a_batch_that_hangs_is_told_while_it_hangs_and_by_what_it_took(stage: Stage) -> None:
    table = bronze(stage, "held", sales(10, datetime.now(UTC)))
    limits = {
        "max_silence": "20 seconds",
        "max_rows_behind": 5,
        "max_batch_duration": "12 seconds",
        "max_processing_latency": "12 seconds",
        "backpressure_after": "10 seconds",
    }
    stage.deploy(totals("held", job=HOLDS, **limits))
    stage.until_committed("held", 0)
    stage.gates[HOLDS].open.clear()
    table.append(sales(20, datetime.now(UTC)))
    while_it_hangs = ("no-progress", "source-lag", "backpressure")
    stage.until_told("held", *while_it_hangs, began=True)
    assert "has 20 events that it has not read; the limit is 5" in stage.message("held", "source-lag")

    stage.gates[HOLDS].open.set()
    afterwards = ("batch-duration", "processing-latency")
    stage.until_told("held", *afterwards, began=True)
    stage.until_told("held", *while_it_hangs, began=False)
    table.append(sales(5, datetime.now(UTC)))
    stage.until_told("held", *afterwards, began=False)
    stage.assert_told_once("held", *while_it_hangs, *afterwards)
    stage.stop("held")


def test_a_checkpoint_above_its_limits_is_told_until_they_are_raised(stage: Stage) -> None:
    table = bronze(stage, "costly", sales(10, datetime.now(UTC)))
    tight = totals("costly", max_checkpoint_bytes=1, max_checkpoint_duration="1 millisecond", max_state_bytes=1)
    kinds = ("checkpoint-size", "checkpoint-duration", "state-bytes")
    stage.deploy(tight)
    stage.until_told("costly", *kinds, began=True)

    # Limits may change under a checkpoint; nothing else has changed.
    generation = stage.deploy(totals("costly"))
    # Only then: the one that is about to be replaced would read it as well.
    stage.until(lambda: (seen := stage.seen("costly")) and (seen.generation, seen.state) == (generation, "running"))
    table.append(sales(10, datetime.now(UTC)))
    stage.until_committed("costly", 1, generation)
    # Spark reports on a batch after it has committed.
    stage.until(lambda: stage.seen("costly").figures.checkpoint_ms is not None)
    figures = stage.seen("costly").figures
    assert figures.checkpoint_bytes > 1
    assert figures.checkpoint_ms > 1
    assert figures.state_bytes > 1
    stage.until_told("costly", *kinds, began=False)
    stage.assert_told_once("costly", *kinds)
    stage.stop("costly")


def test_a_damaged_checkpoint_is_told_until_it_is_whole_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each try comes after a pause twice as long as the one before.
    monkeypatch.setattr(steps, "_TRIES_OF_THE_UNKNOWN", 3)
    table = bronze(stage, "damaged", sales(10, datetime.now(UTC)))
    wanted = totals("damaged", max_restarts=1)
    stage.deploy(wanted)
    stage.until_committed("damaged", 0)
    stage.stop("damaged")
    checkpoint = Path(stage.lake.uri) / "_checkpoints/damaged/epoch-1"
    partition, kept = checkpoint / "state/0/0", checkpoint / "kept"
    partition.rename(kept)
    table.append(sales(10, datetime.now(UTC)))

    stage.deploy(wanted)
    stage.until(lambda: stage.seen("damaged").state == "failed")
    stage.until_told("damaged", "checkpoint-failing", "restarts", began=True)
    assert "is not started again until it is deployed" in stage.message("damaged", "checkpoint-failing")

    shutil.rmtree(partition, ignore_errors=True)  # what the tries have made of it
    kept.rename(partition)
    generation = stage.deploy(wanted)
    stage.until_committed("damaged", 1, generation)
    stage.until_told("damaged", "checkpoint-failing", "restarts", began=False)
    stage.assert_told_once("damaged", "checkpoint-failing", "restarts")
    stage.stop("damaged")
    assert [row["units"] for row in lakes.rows(stage.lake, "gold.damaged")] == [20]


def test_a_pipeline_that_does_not_fit_its_source_is_told_until_it_is_fixed(stage: Stage) -> None:
    bronze(stage, "unfit", sales(10, datetime.now(UTC)))
    # What only Spark knows: else the deploy would be refused.
    stage.deploy(totals("unfit", units="sum(size(product_id))"))
    stage.until_told("unfit", "not-running", began=True)
    assert "size(product_id)" in stage.message("unfit", "not-running")
    generation = stage.deploy(totals("unfit"))
    stage.until_committed("unfit", 0, generation)
    stage.until_told("unfit", "not-running", began=False)
    stage.assert_told_once("unfit", "not-running")
    stage.stop("unfit")


def test_an_unbalanced_ledger_is_told_until_results_are_computed_again(stage: Stage) -> None:
    table = bronze(stage, "forged", sales(10, datetime.now(UTC)))
    wanted = totals("forged")
    stage.deploy(wanted)
    stage.until_committed("forged", 0)
    newest = ledger_rows(stage.lake, "gold.forged", "forged", 1)[-1][0]
    lost = a_stamp(newest + 1, pipeline="forged", ledger=a_batch(10, on_time=7, pairs_result=None))
    nothing = open_table(stage.lake, "gold.forged").to_pyarrow_table().schema.empty_table()
    write(stage.lake, "gold.forged", nothing, stamp=lost)
    stage.until_told("forged", "unbalanced-ledger", began=True)
    assert "read 10 events, accounts for 7" in stage.message("forged", "unbalanced-ledger")

    stage.stop("forged")
    reset(stage.lake, wanted, empty_tables=True)
    table.append(sales(10, datetime.now(UTC)))
    generation = stage.deploy(wanted)
    stage.until_committed("forged", 0, generation)
    stage.until_told("forged", "unbalanced-ledger", began=False)
    stage.assert_told_once("forged", "unbalanced-ledger")
    stage.stop("forged")


def test_an_order_that_nobody_takes_is_told_until_a_supervisor_does(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    deploy(lake, [a_pipeline()])
    assert look(lake, now=datetime.now(UTC)).changes == ()
    later = datetime.now(UTC) + timedelta(minutes=3)
    began = look(lake, now=later)
    assert [(change.kind, change.began) for change in began.changes] == [("no-supervisor", True)]
    mark_reported(lake, began)
    assert look(lake, now=later).changes == ()

    # What it starts here is no driver: that is of no account to whether somebody has taken the order.
    sleeper = LocalProcess((sys.executable, "-c", "import time; time.sleep(600)"))
    with streams.launching(WatchedLauncher(sleeper)) as launcher:
        streams.supervisor(lake, tmp_path / "logs", launcher).look()
        assert len(launcher.launched) == 1
    cleared = look(lake, now=datetime.now(UTC) + timedelta(seconds=1)).changes
    assert [(change.kind, change.began) for change in cleared] == [("no-supervisor", False)]
    assert sorted(row["event"] for row in lakes.rows(lake, "ops.alerts")) == ["began", "cleared"]
