"""Airflow's own backfill over many days, and the DAGs of every day, on a machine as a user has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_jobs.console.laptop.airflow import AirflowError
from spark_jobs.lake.tables.opening import exists, open_table, row_count
from tests.dags.machine import Machine, Run, machine, until

# A backfill of one range, from the form: tests/dags/test_streams_under_airflow.py.
pytestmark = pytest.mark.long

DAG = "backfill_top_products"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), notifiers=[], connections={}) as found:
        # Until the stream has closed results, a range is refused: all of it is still open.
        until(lambda: has_results(found), 300, "results of the stream")
        found.process("shop").stop(within_s=10)
        found.pause(DAG, paused=False)
        yield found


def has_results(here: Machine) -> bool:
    table = "gold.top_products"
    return exists(here.lake, table) and row_count(open_table(here.lake, table)) > 0


@pytest.fixture
def today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def create(here: Machine, first: datetime, last: datetime, **options: Any) -> int:
    """Creates a backfill, as its form does; its number."""
    body = {
        "dag_id": DAG,
        "from_date": first.isoformat(),
        "to_date": last.isoformat(),
        "run_backwards": False,
        "dag_run_conf": {},
        "reprocess_behavior": "none",
        "max_active_runs": 1,
        **options,
    }

    def created() -> int | None:
        try:
            answer = here.api._send("POST", "/api/v2/backfills", body)
        except AirflowError as error:
            # docs/operate/operating.md: on SQLite it is to be sent again where something else was writing.
            if "Database is locked" in str(error):
                return None
            raise
        assert answer.status_code == 200, answer.text
        return int(answer.json()["id"])

    return until(created, 60, "a backfill")


def days(here: Machine, first: datetime, last: datetime) -> dict[str, str]:
    """State of the newest run of each day."""
    path = f"dags/{DAG}/dagRuns?run_type=backfill&limit=100&order_by=run_after"
    found = {run["logical_date"][:10]: run["state"] for run in here.api.get(path)["dag_runs"]}
    return {day: state for day, state in found.items() if f"{first:%F}" <= day <= f"{last:%F}"}


def of_day(here: Machine, day: datetime) -> Run:
    """The newest run of a day."""
    path = f"dags/{DAG}/dagRuns?run_type=backfill&limit=100&order_by=-run_after"
    found = next(run for run in here.api.get(path)["dag_runs"] if run["logical_date"].startswith(f"{day:%F}"))
    return Run(here.api, DAG, found["dag_run_id"], found["state"])


def finished(here: Machine, number: int, within_s: float = 600) -> None:
    until(lambda: here.api.get(f"backfills/{number}")["completed_at"], within_s, "the end of the backfill")


def awaited(here: Machine, first: datetime, last: datetime, holds: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    found = until(lambda: holds(days(here, first, last)), 600, "the days")
    assert found
    return days(here, first, last)


def test_ten_days_are_green_even_those_before_the_first_event(here: Machine, today: datetime) -> None:
    # The newest day has the run of the schedule.
    first, last = today - 11 * DAY, today - 2 * DAY
    finished(here, create(here, first, last))
    found = days(here, first, last)
    assert len(found) == 10
    assert set(found.values()) == {"success"}


def test_a_cancelled_backfill_goes_on_where_failed_days_are_run_again(here: Machine, today: datetime) -> None:
    first, last = today - 17 * DAY, today - 12 * DAY
    number = create(here, first, last)
    awaited(here, first, last, lambda found: "success" in found.values())
    answer = here.api._send("PUT", f"/api/v2/backfills/{number}/cancel", {})
    assert answer.status_code == 200, answer.text
    found = awaited(here, first, last, lambda found: not {"running", "queued"} & set(found.values()))
    assert set(found.values()) == {"success", "failed"}

    finished(here, create(here, first, last, reprocess_behavior="failed"))
    assert set(days(here, first, last).values()) == {"success"}


def test_days_of_a_dag_that_is_paused_wait(here: Machine, today: datetime) -> None:
    first, last = today - 20 * DAY, today - 19 * DAY
    here.pause(DAG, paused=True)
    number = create(here, first, last)
    # Another DAG runs meanwhile, from its beginning to its end: the scheduler has had its time.
    assert here.run("monitor_streams").state == "success"
    assert set(days(here, first, last).values()) == {"queued"}
    here.pause(DAG, paused=False)
    finished(here, number)
    assert set(days(here, first, last).values()) == {"success"}


@pytest.mark.parametrize(
    ("dag", "task"), [("check_quality", "check"), ("audit_ledger", "audit"), ("maintain_tables", "maintain")]
)
def test_the_dags_of_every_day_are_green_with_a_row_for_each_pipeline(here: Machine, dag: str, task: str) -> None:
    run = here.run(dag, within_s=600)
    rows = run.rows(task)
    assert run.state == "success", rows
    assert rows
    assert set(rows.values()) == {"success"}


def test_a_day_that_fails_stops_no_other_and_is_run_again_alone(here: Machine, today: datetime) -> None:
    first, last = today - 23 * DAY, today - 21 * DAY
    # A driver that streams the table would make its folder anew.
    here.process("supervisor").stop(within_s=150)
    bronze = here.folder / "lake/bronze/sales"
    away = bronze.rename(bronze.with_suffix(".away"))
    number = create(here, first, last)
    found = awaited(here, first, last, lambda found: "failed" in found.values())
    shutil.rmtree(bronze, ignore_errors=True)
    away.rename(bronze)
    assert [day for day, state in found.items() if state == "failed"] == [f"{first:%F}"]
    told = of_day(here, first).log("backfill")
    assert "table bronze.sales, which it reads, is not in the lake" in told
    assert "Nothing was read or written" in told

    finished(here, number)
    found = days(here, first, last)
    assert len(found) == 3
    assert found[f"{last:%F}"] == "success"

    again = create(here, first, last, reprocess_behavior="failed")
    finished(here, again)
    assert set(days(here, first, last).values()) == {"success"}
