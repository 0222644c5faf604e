"""The driver of a job, in the tests' own Spark session."""

import json
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.orders import DesiredState
from spark_jobs.control.supervision import terms
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.job.loop import JobDriver
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.spark import session
from spark_jobs.spark.session import SessionLostError
from spark_jobs.spec import Between, Files, Ingest, Sink
from tests.control import streams
from tests.control.streams import JOB
from tests.support import lakes
from tests.support.builders import a_pipeline


def test_orders_that_cannot_be_read_at_first_are_not_taken_for_none(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.deploy(lake, [a_pipeline()])
    orders.stop(lake, [a_pipeline().name], by="a test")
    terms.records(lake, JOB).append(1, terms.Term(host="a", supervisor="a/1", begun_at=streams.Clock().now()))
    driver, looks = JobDriver(spark, lake, JOB, 1), []
    read = driver._orders.newest

    def fail_at_first() -> tuple[int, DesiredState | None]:
        looks.append(None)
        if len(looks) == 1:
            raise OSError("the lake is unreachable")
        return read()

    monkeypatch.setattr(driver._orders, "newest", fail_at_first)
    driver.run(threading.Event())
    assert len(looks) == 2


@pytest.mark.parametrize(
    "seen", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("Answer from Java side is empty")]
)
@pytest.mark.parametrize("is_alive", [False, True])
def test_a_call_that_the_end_of_spark_cuts_off_is_told_as_that(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, seen: Exception, is_alive: bool
) -> None:
    streams.deploy(lake, [a_pipeline()])
    orders.stop(lake, [a_pipeline().name], by="a test")
    terms.records(lake, JOB).append(1, terms.Term(host="a", supervisor="a/1", begun_at=streams.Clock().now()))
    driver = JobDriver(spark, lake, JOB, 1)

    def is_cut_off() -> None:
        # The JVM of the tests is to go on.
        monkeypatch.setattr(session, "why_ended", lambda _: None if is_alive else "its JVM was ended by signal 9")
        raise seen

    monkeypatch.setattr(driver._driver, "look", is_cut_off)
    with pytest.raises(type(seen) if is_alive else SessionLostError) as told:
        driver.run(threading.Event())
    assert is_alive or "its JVM was ended by signal 9" in str(told.value)
    assert seen in (told.value, told.value.__cause__)


def test_a_pipeline_whose_start_the_end_of_spark_cuts_off_has_not_failed(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.deploy(lake, [a_pipeline()])
    terms.records(lake, JOB).append(1, terms.Term(host="a", supervisor="a/1", begun_at=streams.Clock().now()))
    driver = JobDriver(spark, lake, JOB, 1)

    def is_cut_off(*_: object, **__: object) -> None:
        monkeypatch.setattr(session, "why_ended", lambda _: "its JVM was ended by signal 9")
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(PipelineQuery, "start", is_cut_off)
    with pytest.raises(SessionLostError, match="its JVM was ended by signal 9"):
        driver.run(threading.Event())
    seen = driver.pipelines()[a_pipeline().name]
    assert (seen.state, seen.error, seen.failures) == ("starting", None, ())


def test_a_halted_pipeline_waits_and_takes_a_decision_up_by_itself(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    def an_ingest(name: str) -> Ingest:
        (tmp_path / name).mkdir()
        return Ingest(
            name=name,
            source=Files(str(tmp_path / name)),
            columns={"v": "INT", "t": "TIMESTAMP"},
            event_time="t",
            rules=(Between("v", min=0, on_failure="fail"),),
            sink=Sink(f"bronze.{name}"),
        )

    def land(name: str, file: str, *values: int) -> None:
        rows = (json.dumps({"v": value, "t": "2026-01-01T00:00:00Z"}) for value in values)
        (tmp_path / name / f"_{file}").write_text("\n".join(rows))
        (tmp_path / name / f"_{file}").rename(tmp_path / name / file)

    def values(name: str) -> list[int]:
        try:
            return sorted(row["v"] for row in lakes.rows(lake, f"bronze.{name}"))
        except LookupError:
            return []

    def told(driver: JobDriver, name: str) -> str:
        seen = driver.pipelines().get(name)
        return seen.state if seen else "unknown"

    strict, other = an_ingest("strict"), an_ingest("other")
    streams.deploy(lake, [strict, other])
    terms.records(lake, JOB).append(1, terms.Term(host="a", supervisor="a/1", begun_at=streams.Clock().now()))
    land("strict", "1.json", 1, -2, 3)
    driver, stop = JobDriver(spark, lake, JOB, 1), threading.Event()
    thread = threading.Thread(target=driver.run, args=(stop,))
    thread.start()
    try:
        streams.until(lambda: told(driver, "strict") == "halted")
        # The other one goes on; an order that changes nothing does not start it, nor does one for another definition.
        land("other", "1.json", 7)
        streams.until(lambda: values("other") == [7])
        assert not any(each.changed for each in streams.deploy(lake, [strict]))
        assert streams.deploy(lake, [strict.model_copy(update={"personal": ("v",)})])[0].changed
        streams.until(lambda: driver.pipelines()["strict"].generation == 2)
        streams.until(lambda: told(driver, "strict") == "halted")
        assert "is halted since" in str(driver.pipelines()["strict"].error)
        assert values("strict") == []

        halts.decide(lake, "strict", "quarantine", by="ada")
        streams.until(lambda: values("strict") == [1, 3])
        streams.until(lambda: told(driver, "strict") == "running")
        assert driver.pipelines()["strict"].failures == ()
        # Of what was decided about the batch, nothing is left for the next one.
        land("strict", "2.json", -4)
        streams.until(lambda: told(driver, "strict") == "halted")

        # Stopped while it is halted, it is no reason to stay.
        orders.stop(lake, ["strict", "other"], by="a test")
        thread.join(60)
        assert not thread.is_alive()
    finally:
        stop.set()
        thread.join(60)
