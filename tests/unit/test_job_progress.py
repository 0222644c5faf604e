"""What of a driver's process needs no Spark: its signs of life, and how it judges a failure."""

import threading
import time
from datetime import UTC, datetime

import pytest

from spark_jobs.control.supervision import terms
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, Pulse, pulse_of
from spark_jobs.job import loop, process
from spark_jobs.job.loop import Fence, _Running, has_committed
from spark_jobs.job.process import Heart
from spark_jobs.job.prometheus import PulseCollector
from spark_jobs.lake.checkpoints.epochs import begin_epoch, open_epoch
from tests.support.builders import a_lake, a_pipeline

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PATIENCE_S = 30


class Driver:
    """Of one pipeline, whose source does not answer before it may."""

    def __init__(self):
        self.alive_at = float("inf")
        self.asked, self.may_answer, self.beaten = threading.Event(), threading.Event(), threading.Semaphore(0)
        self.batch_id = None

    def ask_spark(self):
        self.may_answer.wait()

    def measure(self):
        self.asked.set()
        self.may_answer.wait()
        self.batch_id = 7

    def pipelines(self):
        self.beaten.release()
        figures = Figures(batch_id=self.batch_id)
        return {"sales": PipelinePulse(generation=1, state="running", since=NOW, figures=figures)}


@pytest.fixture
def heart(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PULSE_EVERY_S", 0.01)
    lake = a_lake(tmp_path)
    terms.records(lake, "streams").append(1, terms.Term(host="a", supervisor="a/1", begun_at=NOW))
    heart = Heart(lake, "streams", 1, None, Fence(lake, "streams", 1))
    heart.driver = Driver()
    heart.start()
    yield heart
    heart.driver.may_answer.set()
    heart.end("the test is over")


def told(heart, tmp_path):
    return pulse_of(a_lake(tmp_path), "streams", 1)


def test_a_source_that_does_not_answer_holds_up_no_sign_of_life(heart, tmp_path):
    assert heart.driver.asked.wait(PATIENCE_S)
    for _ in range(5):
        assert heart.driver.beaten.acquire(timeout=PATIENCE_S)
    assert told(heart, tmp_path).sequence >= 4
    assert told(heart, tmp_path).pipelines["sales"].figures.batch_id is None


def test_a_sign_of_life_tells_for_how_long_spark_has_not_answered(heart, tmp_path):
    def silent_s():
        assert heart.driver.beaten.acquire(timeout=PATIENCE_S)
        found = told(heart, tmp_path)  # none before the first one is written
        return found.spark_silent_s if found else 0.0

    until(lambda: silent_s() >= 0.3)
    heart.driver.may_answer.set()
    until(lambda: silent_s() < 0.3)


def test_a_rate_that_was_measured_long_ago_is_not_told(monkeypatch):
    running = _Running(1, "running", NOW, figures=Figures(read=9, input_rows_per_s=73.0, processed_rows_per_s=99.0))
    running.measured_at = time.monotonic()
    assert running.told_figures.input_rows_per_s == 73.0
    monkeypatch.setattr(loop, "_MEASURED_S", -1.0)
    assert running.told_figures == Figures(read=9)


@pytest.mark.parametrize(("silent_s", "up"), [(0.0, 1.0), (29.0, 1.0), (31.0, 0.0)])
def test_a_pipeline_whose_spark_hangs_is_down_to_prometheus(silent_s, up):
    pipelines = {"sales": PipelinePulse(generation=1, state="running", since=NOW)}
    who = {"job": "streams", "term": 1, "host": "h", "pid": 1, "pid_born": "", "started_at": NOW, "at": NOW}
    newest = Pulse(**who, sequence=1, spark_silent_s=silent_s, pipelines=pipelines)
    found = {family.name: family.samples for family in PulseCollector(lambda: newest).collect()}
    assert [sample.value for sample in found["tidemark_pipeline_up"]] == [up]


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline


def test_nor_does_it_hold_up_the_end(heart, tmp_path):
    assert heart.driver.asked.wait(PATIENCE_S)
    heart.end("drained")
    assert told(heart, tmp_path).ending == "drained"


def test_the_last_sign_of_life_has_what_was_measured_last(heart, tmp_path, monkeypatch):
    assert heart.driver.asked.wait(PATIENCE_S)
    monkeypatch.setattr(process, "PULSE_EVERY_S", PATIENCE_S)
    heart.driver.may_answer.set()
    heart.end("drained")
    assert told(heart, tmp_path).pipelines["sales"].figures.batch_id == 7


@pytest.mark.parametrize(("hangs_after_s", "told_before"), [(300.0, [None]), (0.0, [])])
def test_a_driver_that_hangs_before_it_has_begun_falls_silent(tmp_path, monkeypatch, hangs_after_s, told_before):
    lake, endings = a_lake(tmp_path), []
    monkeypatch.setattr(process, "_HANGS_AFTER_S", hangs_after_s)
    monkeypatch.setattr(process, "PULSE_EVERY_S", PATIENCE_S)
    heart = Heart(lake, "streams", 1, None, Fence(lake, "streams", 1))
    monkeypatch.setattr(heart, "_beat", endings.append)
    heart.start()
    heart.end("the test is over")  # after it has come round once
    assert endings == [*told_before, "the test is over"]


def committed(lake, epoch, *names):
    for name in names:
        lake.store.put(f"{epoch.folder}/commits/{name}", b"v1")


def test_a_pipeline_has_progressed_once_a_batch_of_its_epoch_is_finished(tmp_path):
    lake, definition = a_lake(tmp_path), a_pipeline()
    assert not has_committed(lake, definition.name)
    first = open_epoch(lake, definition)
    assert not has_committed(lake, definition.name)
    committed(lake, first, ".0.crc", ".0.123.tmp")
    assert not has_committed(lake, definition.name)
    committed(lake, first, "0")
    assert has_committed(lake, definition.name)

    begin_epoch(lake, definition, 2)
    assert not has_committed(lake, definition.name)


def test_where_nobody_can_tell_it_is_taken_to_have_progressed(tmp_path):
    lake = a_lake(tmp_path)
    open_epoch(lake, a_pipeline())
    (tmp_path / "_checkpoints/hourly_sales/epochs/000001.json").write_text("{")
    assert has_committed(lake, "hourly_sales")
