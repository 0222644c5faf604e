"""What the plan of a deploy says, without Airflow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tidemark_dags.plan import Step, as_text, plan

from spark_jobs.control.orders import Desired, Order
from spark_jobs.pipelines import registry, with_sources
from spark_jobs.spec import Definition, DefinitionError

TOP = registry()["top_products"]


def order(definition: Definition, **changes: Any) -> Order:
    values = {
        "state": "running",
        "generation": 3,
        "definition": definition.to_json(),
        "ordered_at": datetime(2026, 1, 1, tzinfo=UTC),
        "ordered_by": "a test",
    }
    return Order(**{**values, **changes})


def planned(
    *orders: tuple[str, Order], failed: dict[str, int] | None = None, refused: dict[str, str] | None = None
) -> Step:
    desired = {job: Desired(job=job, pipelines={TOP.name: each}) for job, each in orders}
    (step,) = plan([TOP], desired=desired, failed=failed or {}, refused=refused or {})
    return step


def test_what_was_never_deployed_starts() -> None:
    assert planned() == Step("top_products", "streams", "start", "for the first time")


def test_what_runs_so_already_is_left_alone() -> None:
    assert planned(("streams", order(TOP))).action == "leave"


def test_what_was_stopped_starts_again() -> None:
    assert planned(("streams", order(TOP, state="stopped"))).action == "start"


def test_what_has_failed_for_good_is_tried_again() -> None:
    assert planned(("streams", order(TOP)), failed={"top_products": 3}).action == "restart"


def test_a_failure_of_an_earlier_generation_does_not_count() -> None:
    assert planned(("streams", order(TOP)), failed={"top_products": 2}).action == "leave"


def test_a_setting_that_may_change_under_a_checkpoint_means_a_restart() -> None:
    slower = type(TOP).model_validate({**TOP.model_dump(mode="json"), "trigger_interval": "30 seconds"})
    assert planned(("streams", order(slower))).action == "restart"


def test_a_pipeline_that_moves_to_another_job_says_from_where() -> None:
    step = planned(("other", order(TOP)))
    assert (step.action, step.why) == ("start", "moves from job other")


def test_what_its_checkpoint_refuses_is_refused_with_the_reason() -> None:
    step = planned(("streams", order(TOP)), refused={"top_products": "its definition has changed (steps)"})
    assert (step.action, step.why) == ("refuse", "its definition has changed (steps)")


def test_the_plan_reads_job_by_job() -> None:
    steps = [
        Step("ingest_sales", "streams", "leave", "runs so already"),
        Step("nightly", "batchy", "start", "for the first time"),
        Step("top_products", "streams", "restart", "it had failed"),
    ]
    assert as_text(steps).splitlines() == [
        "job streams:",
        "  leave    ingest_sales  runs so already",
        "  restart  top_products  it had failed",
        "job batchy:",
        "  start    nightly       for the first time",
    ]


def test_with_sources_brings_the_ingests_first() -> None:
    found = with_sources([registry()["guest_profile"]])
    assert [each.name for each in found] == ["ingest_payments", "ingest_visits", "guest_profile"]


def test_with_sources_names_the_table_that_nobody_writes() -> None:
    orphan = type(TOP).model_validate({**TOP.model_dump(mode="json"), "source": {"kind": "table", "name": "bronze.x"}})
    with pytest.raises(DefinitionError, match=r"no registered ingest writes bronze\.x"):
        with_sources([orphan])
