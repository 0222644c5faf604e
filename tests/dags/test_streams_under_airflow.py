"""Streams under a real Airflow, as a user has them; the tests follow one another on one machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from spark_jobs.console.laptop.airflow import AirflowError, password
from spark_jobs.control.desired import awaiting
from spark_jobs.control.supervision.launchers import is_running
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import current_epoch, open_epoch
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.lake.tables.quarantine import Selection, counted
from spark_jobs.pipelines import registry
from tests.dags.machine import Machine, Run, machine, until
from tests.dags.receiver import Mailbox, Receiver, listening, mailbox
from tests.support import lakes

DEMO = {"ingest_sales", "top_products", "top_products_live", "shop_totals"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with listening() as found:
        yield found


@pytest.fixture(scope="module")
def mails() -> Iterator[Mailbox]:
    with mailbox() as found:
        yield found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, mails: Mailbox) -> Iterator[Machine]:
    webhook = {"kind": "webhook", "conn_id": "tidemark_webhook", "endpoint": "alerts"}
    nobody = {"kind": "webhook", "conn_id": "nobody_there", "endpoint": "alerts"}
    mail = {"kind": "email", "to": ["ops@example.com"]}
    connections = {
        "tidemark_webhook": receiver.address,
        "nobody_there": "http://127.0.0.1:1",
        "smtp_default": mails.connection,
    }
    folder = tmp_path_factory.mktemp("machine")
    with machine(folder, notifiers=[nobody, webhook, mail], connections=connections) as found:
        yield found


def test_up_deploys_the_demonstration_through_its_dag(here: Machine) -> None:
    runs = here.api.get("dags/deploy_streams/dagRuns")["dag_runs"]
    assert [run["state"] for run in runs] == ["success"]
    assert set(here.generations()) == DEMO
    secret = password(here.folder / ".airflow")
    assert secret
    assert "password in .airflow/" in here.said
    # Neither is it in a log, nor may anybody else read a file of Airflow's.
    texts = [path.read_text() for path in (here.folder / "logs").rglob("*.log")]
    assert texts
    assert not any(secret in text for text in (here.said, *texts))
    entered = [path for path in (here.folder / ".airflow", here.airflow.log) if path.stat().st_mode & 0o077]
    assert entered == []
    assert "where the time went" in here.said
    assert here.api.get("importErrors")["total_entries"] == 0


def test_a_second_up_changes_nothing_that_runs(here: Machine) -> None:
    before = here.pulse(), here.generations(), here.airflow.facts()
    said = here.up()
    after = here.pulse(), here.generations(), here.airflow.facts()
    assert before[0] is not None
    assert after[0] is not None
    assert (after[0].pid, *after[1:]) == (before[0].pid, *before[1:])
    assert "running: " in said
    here.close_shop()


def test_deploying_what_runs_changes_nothing_even_if_its_answer_is_lost(here: Machine) -> None:
    before, runs_before, answers = here.generations(), _deploy_runs(here), []

    def lose_the_first(answer: httpx.Response) -> None:
        if answer.request.method == "POST" and answer.url.path.endswith("/dagRuns"):
            answers.append(answer.status_code)
            if len(answers) == 1:
                raise httpx.ReadTimeout("as if it took too long")

    api = here.api
    api._client.event_hooks = {"response": [lose_the_first]}
    run = here.ended("deploy_streams", api.trigger("deploy_streams", {"pipelines": ["top_products"]}))
    assert answers == [200, 409]
    assert _deploy_runs(here) == runs_before | {run.run_id}
    assert run.state == "success"
    assert "unchanged top_products" in run.log("plan")
    assert "ingest_sales: already runs this way" in run.log("deploy")
    assert here.generations() == before


def test_an_unknown_pipeline_is_refused_by_name(here: Machine) -> None:
    with pytest.raises(AirflowError, match=r"'top_product' is not one of .*'top_products'"):
        here.api.trigger("deploy_streams", {"pipelines": ["top_product"]})


def _answered(here: Machine, dag: str, asks: str, option: str, **conf: Any) -> tuple[Run, dict[str, Any]]:
    """Starts a run that asks, and answers as the page of required actions does; the run, and what it has asked."""
    run_id = here.api.trigger(dag, conf)
    path = f"dags/{dag}/dagRuns/{run_id}/taskInstances/approval/-1/hitlDetails"
    # An answer before the scheduler has noticed that the process of the question has ended fails the task.
    heard = f"Received executor event with state success for task instance TaskInstanceKey(dag_id='{dag}', "
    heard += f"task_id='approval', run_id='{run_id}'"

    def asked() -> Any:
        tasks = {task["task_id"]: task["state"] for task in here.api.tasks(dag, run_id)}
        assert tasks.get(asks) != "failed"
        waits = tasks.get("approval") == "awaiting_input" and heard in here.airflow.log.read_text()
        return here.api.get(path) if waits else None

    detail = until(asked, 120, "the question")
    answer = here.api._send("PATCH", f"/api/v2/{path}", {"chosen_options": [option], "params_input": {}})
    assert answer.status_code == 200, answer.text
    return here.ended(dag, run_id), detail


# In whose name: test_an_operator_saves_and_goes_back_by_a_form_and_an_answer. What decisions do:
# tests/spark/test_halted.py.
@pytest.mark.long
def test_a_halted_pipeline_is_decided_about_in_the_name_of_whoever_answers(here: Machine) -> None:
    name = "ingest_readings"
    open_epoch(here.lake, registry()[name])
    halt = halts.Halt(pipeline=name, epoch=1, batch_id=3, broken={"no fever": 2}, since=datetime.now(UTC))
    halts.note_halt(here.lake, halt, after=0)
    conf = {"pipeline": name, "choice": "skip", "comment": "a test"}

    run, detail = _answered(here, "resume_halted", "find_halt", "Approve", **conf)
    assert detail["subject"] == f"skip {name}?"
    assert "`no fever`: 2 rows" in detail["body"]
    assert run.state == "success", run.log("carry_out")
    assert "`skip` for batch 3 of epoch 1 is decided, by admin" in run.log("carry_out")
    assert halts.standing(here.lake, name) is None
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(here.lake, name)]
    assert rows[0] == ("skip", "admin", "a test")


@pytest.mark.long  # What a refusal leaves: tests/spark/test_halted.py.
def test_what_is_rejected_is_not_carried_out_and_noted(here: Machine) -> None:
    name = "ingest_readings"
    open_epoch(here.lake, registry()[name])
    halt = halts.Halt(pipeline=name, epoch=1, batch_id=4, broken={"no fever": 2}, since=datetime.now(UTC))
    halts.note_halt(here.lake, halt, after=halts.records(here.lake, name).newest_number())
    conf = {"pipeline": name, "choice": "skip", "comment": "a test"}
    run, _ = _answered(here, "resume_halted", "find_halt", "Reject", **conf)
    assert run.state == "success"
    assert halts.standing(here.lake, name) == halt
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(here.lake, name)]
    assert rows[0] == ("reject", "admin", "a test")


# The command: tests/dags/test_dag_files.py::test_a_task_that_replays_or_repairs_runs_a_command_that_there_is. An answer
# by a person, and the command that it leads to: test_an_operator_saves_and_goes_back_by_a_form_and_an_answer.
@pytest.mark.long
def test_quarantined_rows_are_replayed_in_the_name_of_whoever_approves(here: Machine) -> None:
    name = "ingest_sales"
    until(lambda: counted(here.lake, registry()[name], Selection()), 60, "a row that was set aside")
    run, detail = _answered(here, "replay_quarantine", "report", "Approve", pipeline=name, comment="a test")
    assert detail["subject"] == f"Replay the quarantine of {name}?"
    assert run.state == "success", run.log("replay")
    assert "failed again, and stays" in run.log("replay")
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(here.lake, name)]
    assert rows == [("replay", "admin", "a test")]


def test_the_monitor_is_green_with_a_row_named_after_each_pipeline(here: Machine) -> None:
    # Of which it tells the DAG of the next test.
    until(lambda: _closed_hours(here), 120, "an hour that is closed")
    run = here.look()
    assert run.state == "success", run.log("look")
    assert run.rows("report") == dict.fromkeys(DEMO, "success")
    assert "running" in run.log("report", "top_products")


def test_a_table_that_moved_starts_the_dag_that_follows_its_asset(here: Machine) -> None:
    def told() -> str | None:
        runs = here.api.get("dags/top_products_report/dagRuns?state=success")["dag_runs"]
        asset = [run for run in runs if run["run_type"] == "asset_triggered"]
        logs = (here.ended("top_products_report", run["dag_run_id"]).log("report") for run in asset)
        return next((log for log in logs if "Top products of the hour" in log), None)

    assert "units" in until(told, 180, "a run of top_products_report with rows")
    events = here.api.get("assets/events?limit=100")["asset_events"]
    mine = [event["extra"] for event in events if event["name"] == "gold.top_products"]
    assert mine[0].keys() == {"version", "rows", "watermark"}
    assert len({event["version"] for event in mine}) == len(mine)


@pytest.mark.long  # tests/control/test_supervised.py kills a driver, too.
def test_a_killed_driver_comes_back_and_the_monitor_tells_of_the_restart(here: Machine) -> None:
    before = here.pulse()
    assert before is not None
    os.killpg(os.getpgid(before.pid), signal.SIGKILL)
    until(lambda: _running_since(here, before.term), 240, "a new driver that makes progress")
    run = here.look()
    assert run.state == "success"
    assert "restarted once" in run.log("report", "top_products")


# That streams go on without it: test_streams_outlive_airflow. What is left of a killed process is ended:
# tests/dags/test_laptop.py.
@pytest.mark.long
@pytest.mark.parametrize("database", ["kept", "gone"])
def test_an_airflow_that_was_killed_comes_back_and_streams_go_on(here: Machine, database: str) -> None:
    before = here.pulse()
    assert before is not None
    # A task that dies with Airflow holds up the next of its DAG for a minute.
    here.await_tasks()
    assert "killed" in here.airflow.stop(within_s=0)
    if database == "gone":
        (here.folder / ".airflow/airflow.db").unlink()
    here.up()
    here.close_shop()
    assert here.pulse().pid == before.pid  # type: ignore[union-attr]
    run = here.look()
    assert run.state == "success", run.log("look")


def test_a_broken_pipeline_is_red_with_its_real_error_and_the_others_go_on(here: Machine, receiver: Receiver) -> None:
    driver = here.pulse()
    run = here.run("deploy_streams", pipelines=["ingest_clicks"])
    assert run.state == "failed"
    said = run.log("await_progress")
    assert "landing/clicks, which does not exist" in said
    assert "no progress within" not in said, "it is told at once"

    run = here.look()
    assert run.state == "failed"
    assert run.rows("report") == {**dict.fromkeys(DEMO, "success"), "ingest_clicks": "failed"}
    told = run.log("report", "ingest_clicks")
    assert "landing/clicks, which does not exist" in told
    assert "docs/operate/runbook.md#" in told
    assert driver is not None
    assert here.pulse().pid == driver.pid  # type: ignore[union-attr]
    assert receiver.of("ingest_clicks") == [("/alerts", "not-running", "began")]


def test_receivers_are_told_once_when_a_breach_begins_and_when_it_clears(
    here: Machine, receiver: Receiver, mails: Mailbox
) -> None:
    # That what goes on is not told again: tests/unit/test_control_records.py and tests/dags/test_notifiers.py.
    here.sell("clicks", rows=100, hours_ago=1)
    assert here.run("deploy_streams", pipelines=["ingest_clicks"]).state == "success"
    run = here.look()
    assert run.state == "success"
    assert receiver.of("ingest_clicks") == [
        ("/alerts", "not-running", "began"),
        ("/alerts", "not-running", "cleared"),
    ]
    assert {pipeline["pipeline"] for _, pipeline in receiver.received} == {"ingest_clicks"}
    subjects = [str(mail["Subject"]) for mail in mails.received]
    assert subjects == ["ALERT ingest_clicks: not-running", "cleared ingest_clicks: not-running"]
    assert {(mail["From"], mail["To"]) for mail in mails.received} == {("tidemark@example.com", "ops@example.com")}
    text = mails.received[0].get_body(("html",))
    assert text is not None
    assert "landing/clicks, which does not exist" in text.get_content()


def test_a_notifier_that_cannot_be_reached_hides_nothing(here: Machine) -> None:
    runs = here.api.get("dags/monitor_streams/dagRuns?limit=100")["dag_runs"]
    logs = [here.ended("monitor_streams", run["dag_run_id"]).log("look") for run in runs if run["state"] == "failed"]
    telling = [log for log in logs if "ALERT ingest_clicks: not-running" in log]
    assert len(telling) == 1
    assert "entry 0 (webhook): 'ALERT ingest_clicks: not-running' could not be delivered" in telling[0]


@pytest.mark.long  # Without Airflow: tests/dags/test_notifiers.py.
def test_an_unreachable_lake_is_told_once_and_streams_go_on_afterwards(here: Machine, receiver: Receiver) -> None:
    """As when its disk is not mounted: an empty folder is in its place."""
    driver = here.pulse()
    assert driver is not None
    here.process("shop").stop(within_s=10)
    place, away = Path(here.lake.uri), here.folder / "away"
    place.rename(away)
    place.mkdir()
    for _ in range(2):
        run = here.look()
        assert run.state == "failed"
        assert "is its disk mounted?" in run.log("look")
    assert receiver.of("every pipeline") == [("/alerts", "lake-unreachable", "began")]
    # Pieces of the batch that was on its way may be there, but nothing that begins a lake or commits that batch.
    telling = {"_control", "_delta_log", "commits"}
    begun = [path for path in place.rglob("*") if path.is_file() and telling & set(path.parts)]
    assert begun == []

    shutil.rmtree(place)
    away.rename(place)
    back = datetime.now(UTC)
    here.up()
    until(lambda: _running_since(here, driver.term - 1, at=back), 150, "progress of all streams")
    run = here.look()
    assert run.rows("report").keys() == {*DEMO, "ingest_clicks"}
    assert receiver.of("every pipeline") == [
        ("/alerts", "lake-unreachable", "began"),
        ("/alerts", "lake-unreachable", "cleared"),
    ]
    assert here.pulse().pid == driver.pid  # type: ignore[union-attr]
    read = _read(here, "shop_totals")
    until(lambda: _read(here, "shop_totals") > read, 120, "further events in the ledger")


def test_a_backfill_corrects_closed_results_and_repairs_late_events(here: Machine) -> None:
    pool = here.api.get("pools/tidemark_batch")
    assert pool["slots"] == 1
    before = _late(here, "settled_version IS NULL")
    here.sell("sales", rows=200, hours_ago=30)  # hours that are closed for long
    # Less those that are malformed.
    until(lambda: _late(here, "settled_version IS NULL") >= before + 150, 120, "late events")
    times = {"from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}
    run = here.run("backfill_top_products", within_s=600, **times)
    said = run.log("backfill")
    assert run.state == "success", said
    assert "late events repaired" in said
    assert _late(here, "settled_version IS NOT NULL") >= before + 150
    # Late events of hours much later may wait for their repair.
    assert _differing(here, before=datetime.now(UTC) - timedelta(hours=28)) == []

    events = here.api.get("assets/events?limit=500")["asset_events"]
    # The run of its schedule may have changed rows, too.
    (mine,) = (e for e in events if e["name"] == "gold.top_products" and e["source_run_id"] == run.run_id)
    assert mine["extra"].keys() == {"version", "rows", "watermark", "changed"}


def test_a_backfill_that_cannot_be_is_red_with_its_message(here: Machine) -> None:
    """An end of the range that is missing: tests/dags/test_dag_files.py."""
    reversed_range = {"from": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"}
    run = here.run("backfill_top_products", **reversed_range)
    assert run.state == "failed"
    assert "it is reversed" in run.log("backfill")


# Which pipelines, and the command: test_each_pipeline_that_has_run_has_a_row_also_one_from_a_file and
# test_a_task_that_replays_or_repairs_runs_a_command_that_there_is in tests/dags/test_dag_files.py. How rows are named:
# test_the_monitor_is_green_with_a_row_named_after_each_pipeline. What the process of such a task does: the backfill.
@pytest.mark.long
def test_a_repair_has_a_row_for_each_pipeline_that_has_run(here: Machine) -> None:
    run = here.run_that_is_due("repair_late", within_s=600)
    assert run.state == "success"
    assert run.rows("repair") == {"top_products": "success", "top_products_live": "success"}
    assert "late event" in run.log("repair", "top_products")


def test_stop_drains_what_is_named_and_the_others_go_on(here: Machine) -> None:
    """That a driver ends with its last pipeline: tests/control/test_zombies.py."""
    driver = here.pulse()
    assert driver is not None
    run = here.run("stop_streams", pipelines=["shop_totals", "ingest_clicks"])
    assert run.state == "success"
    found = here.pulse()
    assert found is not None
    assert found.pid == driver.pid
    states = {name: seen.state for name, seen in found.pipelines.items()}
    assert states == {**dict.fromkeys(DEMO, "running"), "shop_totals": "stopped", "ingest_clicks": "stopped"}
    assert _unbalanced(here, "shop_totals") == []


def test_an_operator_saves_and_goes_back_by_a_form_and_an_answer(here: Machine) -> None:
    name = "shop_totals"
    saved = here.run("manage_checkpoints", pipeline=name, action="savepoint", savepoint="by_form", comment="a test")
    assert saved.state == "success", saved.log("look")
    assert "savepoint `by_form` of batch" in saved.log("look")
    before = lakes.ledger(here.lake, registry()[name])
    back = before[-1][0] - 1
    conf = {"pipeline": name, "action": "restore", "batch": back, "comment": "a test"}
    run, detail = _answered(here, "manage_checkpoints", "look", "Approve", **conf)
    assert detail["subject"] == f"restore {name}?"
    assert f"goes back to batch {back} of epoch 1" in detail["body"]
    # Airflow logs what a task returns beside what it says.
    assert "Condition result is to ask a person about what is above" in here.airflow.log.read_text()
    assert run.state == "success", run.log("carry_out")
    assert f"{name} is back at batch {back} of epoch 1" in run.log("carry_out")
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(here.lake, name)]
    assert rows == [("restore", "admin", "a test")]
    assert [batch for batch, entry in lakes.ledger(here.lake, registry()[name]) if entry.kind == "batch"][-1] == back

    # Forth again it would go in the same way; whether it is whole there: tests/services/test_restore.py::
    # test_a_pipeline_in_a_bucket_goes_back_and_forth_as_in_a_folder.
    forth = {**conf, "batch": None, "savepoint": "by_form", "dry_run": True}
    run = here.run("manage_checkpoints", **forth)
    assert run.state == "success", run.log("look")
    assert f"goes back to savepoint `by_form` (batch {before[-1][0]} of epoch 1)" in run.log("look")
    assert "Nothing was written: dry run." in run.log("look")
    assert _unbalanced(here, name) == []


def test_streams_outlive_airflow(here: Machine) -> None:
    """It ends as `make down` ends it."""
    before = here.pulse()
    assert before is not None
    # A task does not end when Airflow asks it to; one that needs longer than `make down` waits is killed.
    here.finish_tasks()
    airflow = here.airflow
    # By itself: what Airflow waits for in vain is killed after a minute, and is named.
    assert airflow.stop(within_s=240).startswith("ended in")
    assert "and is killed" not in airflow.log.read_text(errors="replace")
    assert not airflow.runs()
    read = _read(here, "top_products_live")
    here.sell("sales", rows=100, hours_ago=20)
    until(lambda: _read(here, "top_products_live") > read, 120, "further events in the ledger")
    after = here.pulse()
    assert after is not None
    assert (after.pid, after.sequence > before.sequence) == (before.pid, True)


def test_down_leaves_no_process_behind_and_nothing_unaccounted_for(here: Machine) -> None:
    driver = here.pulse()
    assert driver is not None
    processes = [here.process(name) for name in ("airflow", "supervisor", "shop")]
    said = here.down()
    assert "kill" not in said
    assert [process.runs() for process in processes] == [False] * 3
    assert not is_running(driver.pid, driver.pid_born)
    assert here.down().count("was not running") == 3
    for name in DEMO:
        assert _unbalanced(here, name) == []


def _running_since(here: Machine, term: int, *, at: datetime | None = None) -> bool:
    """Whether all pipelines of a newer driver have made progress, since a time if one is given."""
    now = awaiting.job_now(here.lake, "streams")
    if now.pulse is None or now.pulse.term <= term:
        return False
    seen = now.pulse.pipelines.values()
    return bool(seen) and all(
        one.state == "running" and one.progressed_at is not None and (at is None or one.progressed_at > at)
        for one in seen
    )


def _closed_hours(here: Machine) -> int:
    _, rows = query.run(here.lake, "SELECT count(DISTINCT window_start) FROM gold.top_products")
    return int(str(rows[0][0]))


def _late(here: Machine, which: str) -> int:
    _, rows = query.run(here.lake, f"SELECT count(*) FROM gold.top_products__late WHERE {which}")
    return int(str(rows[0][0]))


def _differing(here: Machine, before: datetime) -> list[tuple[object, ...]]:
    """Rows of hours before an instant that the table has and DuckDB does not compute, or the other way round."""
    columns = "hour, rank, product_id, units, revenue"
    computed = f"""
        SELECT {columns} FROM (
            SELECT *, row_number() OVER (PARTITION BY hour ORDER BY units DESC, product_id) AS rank FROM (
                SELECT date_trunc('hour', sold_at) AS hour, product_id, sum(quantity) AS units,
                    sum(quantity * unit_price) AS revenue
                FROM bronze.sales WHERE NOT _heartbeat GROUP BY ALL)
        ) WHERE rank <= 10 AND hour < TIMESTAMPTZ '{before.isoformat()}'"""
    held = f"""
        SELECT {columns} FROM (SELECT *, window_start AS hour FROM gold.top_products)
        WHERE hour < TIMESTAMPTZ '{before.isoformat()}'"""
    _, counted = query.run(here.lake, f"SELECT count(*) FROM ({computed})")
    assert int(str(counted[0][0])) > 10
    _, rows = query.run(here.lake, f"({computed} EXCEPT {held}) UNION ALL ({held} EXCEPT {computed})")
    return rows


def _deploy_runs(here: Machine) -> set[str]:
    return {run["dag_run_id"] for run in here.api.get("dags/deploy_streams/dagRuns")["dag_runs"]}


def _read(here: Machine, pipeline: str) -> int:
    epoch = current_epoch(here.lake, pipeline)
    assert epoch is not None
    rows = ledger_rows(here.lake, registry()[pipeline].sink.table, pipeline, epoch.number)
    return sum(row["read"] for _, row in rows)


def _unbalanced(here: Machine, pipeline: str) -> list[str]:
    """The equations of its ledger that do not hold."""
    epoch = current_epoch(here.lake, pipeline)
    assert epoch is not None
    definition = registry()[pipeline]
    checks = audit.checks(here.lake, definition, epoch.number, lakes.ledger(here.lake, definition))
    return [text for holds, text in checks if not holds]
