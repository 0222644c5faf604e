"""The DAG files by themselves: what they import, and what the page shows of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import manage_checkpoints as form
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from click.testing import Result
from jinja2 import Environment, StrictUndefined
from tidemark_dags.batch import POOL, Audit, Backfill, CheckpointCommand, Repair, Replay, is_repairable, ran
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from infra.airflow import setup_home
from spark_jobs.cli import app
from spark_jobs.console.laptop import airflow
from spark_jobs.control.desired.orders import all_desired
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begin_epoch, current_epoch, open_epoch
from spark_jobs.lake.checkpoints.halts import Choice
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.pipelines import registry
from spark_jobs.spec import Ingest, Sink
from spark_jobs.spec.shadows import shadow
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write
from tests.support.deploying import beside, deploy
from tests.support.process import REPOSITORY

KEEPING_LATE = [
    "cafe_spending", "cafe_visits", "ingest_time_activity", "ingest_time_difference", "machine_readings",
    "order_payments", "page_sessions", "rolling_sales", "service_errors", "shipment_orders", "stock_averages",
    "top_products", "top_products_live", "unique_events", "unique_transfers", "user_activity", "valid_orders",
]  # fmt: skip

GOING_ON_WITHOUT_LATE = [
    "account_balances", "cafe_service", "card_fraud", "machine_health", "personal_offers", "ride_matching",
    "service_incidents", "tumbling_by_hand",
]  # fmt: skip
"""Late events cannot be counted in these after all: each row depends on the state that the stream goes on with."""

FILES = sorted(path.name for path in (REPOSITORY / "dags").glob("*.py"))

# No lake, no driver, no notifier: whatever takes long to import or would reach for the network.
HEAVY = {
    "pyspark", "delta", "py4j", "deltalake", "duckdb", "pyarrow", "pandas", "numpy", "obstore", "boto3",
    "great_expectations", "confluent_kafka", "requests", "spark_jobs.lake", "spark_jobs.control", "spark_jobs.engine",
    "spark_jobs.cli", "airflow.providers.http", "airflow.providers.smtp",
}  # fmt: skip

_READ = """
import importlib, json, socket, sys
from pathlib import Path

import airflow.sdk
from airflow.sdk import dag, task, Asset, AssetAlias, CronTriggerTimetable, Param

folder = Path(sys.argv[1])
connect = socket.socket.connect

def refuse(*args, **options):
    raise AssertionError("network at parse")

socket.socket.connect = refuse
sys.path.append(str(folder))
if sys.argv[2:]:
    import spark_jobs.pipelines

    spark_jobs.pipelines.__path__ += sys.argv[2:]
loaded, before = {}, set(sys.modules)
for file in sorted(folder.glob("*.py")):
    importlib.import_module(file.stem)
    loaded[file.name] = sorted(set(sys.modules) - before)

from airflow.dag_processing.dagbag import DagBag

bag = DagBag(folder)
dags = {
    dag.dag_id: {
        "doc": dag.doc_md,
        "name": dag.dag_display_name,
        "catchup": dag.catchup,
        "runs": dag.max_active_runs,
        "tags": sorted(dag.tags),
        "retries": {task.task_id: task.retries for task in dag.tasks},
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "timeout": dag.dagrun_timeout.total_seconds() if dag.dagrun_timeout else None,
        "file": Path(dag.fileloc).name,
        "schedule": (type(dag.timetable).__name__, str(getattr(dag.timetable, "expression", ""))),
        "start": dag.start_date.isoformat() if dag.start_date else None,
        "paused": dag.is_paused_upon_creation,
        "pools": {task.task_id: task.pool for task in dag.tasks},
        "shows": [task.task_id for task in dag.tasks if getattr(task, "show_return_value_in_logs", False)],
        "asks": [task.subject for task in dag.tasks if hasattr(task, "subject")],
        "pipelines": [task.pipeline for task in dag.tasks if hasattr(task, "pipeline")],
    }
    for dag in bag.dags.values()
}
print(json.dumps({"loaded": loaded, "errors": bag.import_errors, "dags": dags}))
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return describe(tmp_path_factory.mktemp("airflow"))


def describe(home: Path, *more_pipelines: Path) -> Any:
    """What a process has loaded after each DAG file, and what Airflow reads from them."""
    environment = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(REPOSITORY),
        # Whoever looks at them while the files are read trips over them.
        "TIDEMARK_LAKE": "ftp://no-such-lake",
        "TIDEMARK_SHUFFLE_PARTITIONS": "none",
    }
    command = [sys.executable, "-c", _READ, str(REPOSITORY / "dags"), *map(str, more_pipelines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("file", FILES)
def test_a_dag_file_imports_neither_spark_nor_a_lake_nor_the_network(file: str, described: Any) -> None:
    loaded = {".".join(name.split(".")[:depth]) for name in described["loaded"][file] for depth in (1, 2, 3)}
    assert loaded & HEAVY == set()


def test_every_dag_file_is_read_without_an_error(described: Any) -> None:
    assert described["errors"] == {}
    assert sorted({dag["file"] for dag in described["dags"].values()}) == FILES
    for name, dag in described["dags"].items():
        if dag["file"] != "backfill.py":
            assert dag["file"] == f"{name}.py"


def test_every_dag_says_on_its_page_what_it_does_and_never_piles_up(described: Any) -> None:
    for dag in described["dags"].values():
        assert len(dag["doc"]) > 200
        assert (dag["catchup"], dag["runs"]) == (False, 1)
        assert "tidemark" in dag["tags"]
        assert dag["name"][0].isupper()
    assert described["dags"]["monitor_streams"]["timeout"] is not None


def test_no_log_ends_with_what_a_task_gives_to_the_next_one(described: Any) -> None:
    assert {name: dag["shows"] for name, dag in described["dags"].items() if dag["shows"]} == {}


def test_only_a_look_is_tried_again(described: Any) -> None:
    retries = {name: count for dag in described["dags"].values() for name, count in dag["retries"].items()}
    assert {name for name, count in retries.items() if count} == {"look"}


def test_each_pipeline_that_can_be_backfilled_has_a_dag_for_it(described: Any) -> None:
    found = {name: dag for name, dag in described["dags"].items() if dag["file"] == "backfill.py"}
    expected = {"machine_spikes", *KEEPING_LATE, *GOING_ON_WITHOUT_LATE}
    assert set(found) == {f"backfill_{name}" for name in expected}
    for name, dag in found.items():
        pipeline = name.removeprefix("backfill_")
        daily = ["CronDataIntervalTimetable", "0 0 * * *"]
        assert dag["schedule"] == (["NullTimetable", ""] if pipeline in GOING_ON_WITHOUT_LATE else daily)
        assert dag["start"] == "2026-01-01T00:00:00+00:00"
        assert dag["paused"] is False
        assert dag["pools"] == {"backfill": "tidemark_batch"}
        assert dag["pipelines"] == [pipeline]
        assert registry()[pipeline].sink.table in dag["doc"]
        params = dag["params"]
        assert list(params) == ["from", "to", "mode", "dry_run", "strict", "force"]
        assert all(params[name]["type"] == ["null", "string"] for name in ("from", "to"))
        usual = [] if pipeline in GOING_ON_WITHOUT_LATE else ["corrected"]
        assert params["mode"]["enum"] == [*usual, "as-streamed"]


def test_late_events_are_repaired_every_hour_in_the_same_pool(described: Any) -> None:
    dag = described["dags"]["repair_late"]
    assert dag["schedule"] == ["CronTriggerTimetable", "0 * * * *"]
    assert dag["pools"]["repair"] == "tidemark_batch"
    assert [name for name, each in registry().items() if is_repairable(each)] == KEEPING_LATE


def test_every_pipeline_is_audited_once_a_day_in_the_same_pool(described: Any) -> None:
    dag = described["dags"]["audit_ledger"]
    assert dag["schedule"] == ["CronTriggerTimetable", "30 2 * * *"]
    assert dag["pools"]["audit"] == "tidemark_batch"


def test_tables_with_expectations_are_checked_every_hour_in_the_same_pool(described: Any) -> None:
    dag = described["dags"]["check_quality"]
    assert dag["schedule"] == ["CronTriggerTimetable", "15 * * * *"]
    assert dag["pools"]["check"] == "tidemark_batch"
    checked = {name for name, each in registry().items() if each.is_checked}
    assert {name for name, each in registry().items() if each.expectations} <= checked
    assert {name for name, each in registry().items() if isinstance(each, Ingest)} <= checked


def test_tables_are_maintained_once_a_day_beside_the_streams(described: Any) -> None:
    dag = described["dags"]["maintain_tables"]
    assert dag["schedule"] == ["CronTriggerTimetable", "0 3 * * *"]
    assert set(dag["pools"]) == {"find", "maintain", "remove_task_logs"}
    assert dag["pools"]["maintain"] == "default_pool"


def test_a_halted_pipeline_goes_on_by_a_form_and_the_answer_of_a_person(described: Any) -> None:
    dag = described["dags"]["resume_halted"]
    assert set(dag["pools"]) == {"find_halt", "approval", "carry_out"}
    assert list(dag["params"]) == ["pipeline", "choice", "comment", "wait_minutes"]
    assert dag["params"]["pipeline"]["enum"] == list(registry()), "any batch may be one that cannot be computed"
    assert dag["params"]["choice"]["enum"] == list(get_args(Choice))


def test_a_quarantine_is_replayed_in_the_batch_pool_after_an_approval(described: Any) -> None:
    dag = described["dags"]["replay_quarantine"]
    assert dag["pools"] == {"report": "default_pool", "approval": "default_pool", "replay": "tidemark_batch"}
    assert list(dag["params"]) == ["pipeline", "reasons", "since", "until", "comment", "dry_run"]
    assert dag["params"]["pipeline"]["enum"] == list(registry()), "a batch of any may have been skipped"


@pytest.mark.parametrize(
    ("watermark", "first_day"), [(datetime(2026, 3, 20, 7, tzinfo=UTC), "2026-03-06"), (None, None)]
)
def test_an_audit_goes_back_from_what_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watermark: datetime | None, first_day: str | None
) -> None:
    lake, pipeline = a_lake(tmp_path / "lake"), registry()["top_products"]
    open_epoch(lake, pipeline)
    ledger = a_batch(watermark_ms=round(watermark.timestamp() * 1000) if watermark else 0)
    write(lake, "gold.top_products", {"units": [1]}, stamp=a_stamp(pipeline="top_products", ledger=ledger))
    monkeypatch.setenv("TIDEMARK_LAKE", lake.uri)
    task, today = Audit(task_id="audit", pipeline="top_products"), datetime.now(UTC)
    begin = first_day or f"{today - timedelta(days=14):%F}"
    command, pipeline_name, first, last = task.arguments({"params": {"days": 14}})
    assert (command, pipeline_name, first) == ("audit", "top_products", f"--from={begin}T00:00:00+00:00")
    assert last.startswith(f"--to={today:%F}T")
    assert task.arguments({"params": {"days": None}}) == ["audit", "top_products"]


@pytest.mark.parametrize(
    ("run_type", "day", "is_computed"),
    [("scheduled", -1, False), ("scheduled", 0, True), ("backfill", -1, True)],
)
def test_a_scheduled_backfill_leaves_alone_the_days_before_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_type: str, day: int, is_computed: bool
) -> None:
    lake, pipeline = a_lake(tmp_path / "lake"), registry()["top_products"]
    begun = open_epoch(lake, pipeline).begun_at
    write(lake, "gold.top_products", {"units": [1]}, stamp=a_stamp(pipeline="top_products", ledger=a_batch()))
    monkeypatch.setenv("TIDEMARK_LAKE", lake.uri)
    start = begun.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=day)
    context = {
        "params": {"from": None, "to": None, "mode": "corrected", "dry_run": False, "strict": False, "force": False},
        "data_interval_start": start,
        "data_interval_end": start + timedelta(days=1),
        "dag_run": SimpleNamespace(run_type=run_type),
    }
    task = Backfill(task_id="backfill", pipeline="top_products")
    if is_computed:
        given = task.arguments(context)
        assert f"--from={start.isoformat()}" in given
        assert "--allow-empty" in given
        params = {**context["params"], "from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}
        assert "--allow-empty" not in task.arguments({**context, "params": params})
    else:
        with pytest.raises(AirflowSkipException, match="after this day"):
            task.arguments(context)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"from": "2026-11-02T00:00:00Z", "to": None}, "`to` is missing"),
        ({"from": None, "to": "2026-11-02T00:00:00Z"}, "`from` is missing"),
        ({"from": None, "to": None}, "give `from` and `to`"),
    ],
)
def test_a_backfill_by_hand_says_which_end_of_its_range_is_missing(
    given: dict[str, str | None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a task is red with its message: tests/dags/test_streams_under_airflow.py."""
    context = {"params": {**given, "mode": "corrected"}, "dag_run": SimpleNamespace(run_type="manual")}
    with caplog.at_level("ERROR", logger="tidemark"), pytest.raises(SystemExit):
        Backfill(task_id="backfill", pipeline="top_products").arguments(context)
    said = " ".join(caplog.text.split())
    assert why in said


def test_the_pool_has_one_name_wherever_it_is_made() -> None:
    assert {POOL, airflow.POOL, setup_home._POOL[0]} == {"tidemark_batch"}


def test_the_forms_offer_every_registered_pipeline(described: Any) -> None:
    for name in ("deploy_streams", "stop_streams"):
        assert described["dags"][name]["params"]["pipelines"]["examples"] == list(registry())


def test_a_broken_pipeline_file_breaks_no_dag_and_is_told_on_its_page(
    tmp_path: Path,
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "half_written.py").write_text("from tidemark import Pipeline\nmine = Pipeline(\n")
    described = describe(tmp_path, more)
    assert described["errors"] == {}
    for name in ("deploy_streams", "stop_streams"):
        dag = described["dags"][name]
        field = dag["params"]["pipelines"]
        assert field["examples"] == list(registry())
        for text in (dag["doc"], field["description_md"]):
            assert f"file {more / 'half_written.py'}, line 2: SyntaxError" in text


def test_each_pipeline_that_has_run_has_a_row_also_one_from_a_file(tmp_path: Path) -> None:
    lake = a_lake(tmp_path)
    for name in ("from_a_file", "of_a_later_version", "without_a_batch"):
        begin_epoch(lake, a_pipeline(name=name, sink=Sink(f"gold.{name}")), 1)
        lake.store.put(f"_checkpoints/{name}/epoch-1/commits/0", b"v1\n{}")
    lake.store.delete("_checkpoints/without_a_batch/epoch-1/commits/0")
    epoch = current_epoch(lake, "of_a_later_version")
    assert epoch is not None
    unknown = epoch.model_copy(update={"definition": "{}"}).model_dump_json().encode()
    lake.store.put("_checkpoints/of_a_later_version/epochs/000001.json", unknown)
    assert ran(lake, is_repairable) == ["from_a_file", "of_a_later_version"]
    assert ran(lake, lambda _: False) == ["of_a_later_version"]


def test_what_destroys_in_checkpoints_waits_for_a_person(described: Any) -> None:
    dag = described["dags"]["manage_checkpoints"]
    assert set(dag["pools"]) == {"look", "approval", "carry_out"}
    assert dag["pools"]["carry_out"] == "tidemark_batch"
    look_only = ["show", "savepoint", "compare shadow"]
    asks = ["restore", "rescale", "prune", "promote shadow", "drop shadow"]
    assert sorted(dag["params"]["action"]["enum"]) == sorted(look_only + asks)
    (asked,) = dag["asks"]
    # As Airflow does it: what is not defined is an error.
    template = Environment(undefined=StrictUndefined).from_string(asked)
    told = {action: template.render(params={"action": action, "pipeline": "top_products"}) for action in asks}
    assert told["restore"] == "restore top_products?"
    assert told["promote shadow"] == "promote shadow of top_products?"
    assert set(described["dags"]["reset_pipeline"]["pools"]) == {"look", "approval", "carry_out"}
    for name in ("manage_checkpoints", "reset_pipeline"):
        assert described["dags"][name]["params"]["pipeline"]["examples"] == list(registry())


def test_every_verb_about_alerts_has_a_form(described: Any) -> None:
    dag = described["dags"]["manage_alerts"]
    assert dag["params"]["action"]["enum"] == ["mute", "unmute", "acknowledge"]
    assert described["dags"]["deploy_streams"]["params"]["mode"]["enum"] == ["guarded", "direct", "shadow"]


class Answered:
    """A run that asks, up to its last task: what each task before has found, and what a person has answered."""

    def __init__(self, found: dict[str, Any], answer: str) -> None:
        person = {"id": "7", "name": "ada"}
        self._results = {**found, "approval": {"chosen_options": [answer], "responded_by_user": person}}

    def xcom_pull(self, task_ids: str) -> dict[str, Any]:
        return self._results[task_ids]


@pytest.fixture
def shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake where a pipeline runs as it was, and beside it as its file is now."""
    lake, now = a_lake(tmp_path / "lake"), registry()["top_products"]
    deploy(lake, [now.model_copy(update={"trigger_interval": timedelta(seconds=77)})])
    open_epoch(lake, now)
    beside(lake, now)
    open_epoch(lake, shadow(now))
    monkeypatch.setenv("TIDEMARK_LAKE", lake.uri)
    monkeypatch.setenv("TIDEMARK_LOGS", str(tmp_path / "logs"))
    return lake


def carried_out(action: str, found: dict[str, Any], answer: str) -> Result:
    """The command that the form leads to, as the task runs it; no driver is there to wait for."""
    task = CheckpointCommand(task_id="carry_out", pipeline="top_products")
    context = {"params": {"action": action, "comment": "a test"}, "ti": Answered({"look": found}, answer)}
    return CliRunner().invoke(app, [*task.arguments(context), "--wait", "0 seconds"])


def parsed(*words: str) -> dict[str, Any]:
    """What `tidemark` takes a command for, which is not run."""
    name, *given = words
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    return commands.commands[name].make_context(name, [*given, "--report=report.json"]).params


def test_a_task_that_replays_or_repairs_runs_a_command_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, name = a_lake(tmp_path / "lake"), "top_products"
    monkeypatch.setenv("TIDEMARK_LAKE", lake.uri)
    given = parsed(*Repair(task_id="repair", pipeline=name).arguments({}))
    assert (given["names"], given["dry_run"], given["force"]) == ([name], False, False)

    replay, found = Replay(task_id="replay", pipeline=name), {"until": "2026-01-02", "reasons": {"skipped": 1}}
    params = {"reasons": ["skipped", "future"], "since": "2026-01-01", "comment": "a test"}
    asked = {answer: {"params": params, "ti": Answered({"report": found}, answer)} for answer in ("Approve", "Reject")}
    given = parsed(*replay.arguments(asked["Approve"]))
    assert given["pipeline"] == name
    assert (given["reason"], given["since"], given["until"]) == (["skipped", "future"], "2026-01-01", "2026-01-02")
    assert (given["by"], given["comment"], given["dry_run"]) == ("ada", "a test", False)
    with pytest.raises(AirflowSkipException, match="Rejected by ada"):
        replay.arguments(asked["Reject"])
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(lake, name)]
    assert rows == [("reject", "ada", "a test")]


def test_a_shadow_is_promoted_or_dropped_as_a_named_person_has_approved(shadowed: Lake) -> None:
    now = registry()["top_products"]
    assert "top_products__shadow is a shadow of top_products; what is changed: " in form._shadow_beside("top_products")
    found = form._promotion_plan("top_products")
    assert "top_products__shadow takes the place of top_products" in found["text"]
    with pytest.raises(AirflowSkipException, match="Rejected by ada"):
        carried_out("promote shadow", found, "Reject")
    assert current_epoch(shadowed, shadow(now).name) is not None

    done = carried_out("promote shadow", found, "Approve")
    assert done.exit_code == 0, done.output
    running = all_desired(shadowed)["streams"].running
    assert [*running] == ["top_products"]
    assert running["top_products"].defines(now)
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(shadowed, "top_products")]
    assert rows == [("promote", "ada", "a test"), ("reject", "ada", "a test")]


def test_a_shadow_that_was_approved_to_go_is_not_the_one_that_came_since(shadowed: Lake) -> None:
    now = registry()["top_products"]
    found = form._drop_plan("top_products")
    assert carried_out("drop shadow", found, "Approve").exit_code == 0
    assert current_epoch(shadowed, shadow(now).name) is None
    beside(shadowed, now)
    again = carried_out("drop shadow", found, "Approve")
    assert (again.exit_code, isinstance(again.exception, OutdatedPlanError)) == (1, True)
    assert shadow(now).name in all_desired(shadowed)["streams"].running
    assert [row["action"] for row in decisions_of(shadowed, "top_products")] == ["drop"]
