"""A halted pipeline: who may decide what, when it counts, and where it is shown."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from jinja2 import Template
from tidemark_dags.approvals import Answer, answer_of, line_by_line
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.control.desired import awaiting, orders
from spark_jobs.control.desired.awaiting import DeployError, await_running
from spark_jobs.control.desired.deployment import plan
from spark_jobs.control.monitoring import monitor
from spark_jobs.control.supervision import pulse, status, terms
from spark_jobs.control.supervision.pulse import PipelinePulse, Pulse
from spark_jobs.engine.content import condition_of
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import begin_epoch, open_epoch
from spark_jobs.lake.checkpoints.halts import ChoiceRefusedError, Halt, HaltedError, NotHaltedError
from spark_jobs.lake.errors import ConcurrentDriverError
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.operations.deploy.execute import Deployment, order, watch
from spark_jobs.operations.resume.execute import await_carried_out
from spark_jobs.spark.throwables import Thrown, thrown
from spark_jobs.spec import DefinitionError
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_ingest, write
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
INGEST = an_ingest()
NAME = INGEST.name


def a_halt(**changes):
    parts = {
        "pipeline": NAME,
        "epoch": 1,
        "batch_id": 7,
        "broken": {"no refunds": 3, "not_null(sale_id)": 1},
        "samples": ("quantity is -5",),
        "since": NOW,
    }
    return Halt(**(parts | changes))


@pytest.fixture
def lake(tmp_path):
    """One whose pipeline is halted at batch 7."""
    found = a_lake(tmp_path)
    open_epoch(found, INGEST)
    halts.note_halt(found, a_halt(), after=0)
    return found


def test_a_halt_stands_until_somebody_decides_and_the_decision_is_a_row(lake):
    assert halts.standing(lake, NAME) == a_halt()
    decided = halts.decide(lake, NAME, "skip", by="ada", comment="a test of the sender's")
    assert (decided.choice, decided.decided_by, decided.comment) == ("skip", "ada", "a test of the sender's")
    assert halts.standing(lake, NAME) is None
    (row,) = decisions_of(lake, NAME)
    expected = {
        "pipeline": NAME,
        "action": "skip",
        "decided_by": "ada",
        "subject": "batch 7 of epoch 1: no refunds (3 rows), not_null(sale_id) (1 rows)",
        "comment": "a test of the sender's",
        "decision_id": decided.decision_id,
    }
    assert {name: row[name] for name in expected} == expected


def test_a_rejection_is_a_row_and_changes_nothing(lake):
    halts.reject(lake, NAME, by="ada")
    assert [(row["action"], row["decided_by"]) for row in decisions_of(lake, NAME)] == [("reject", "ada")]
    assert halts.standing(lake, NAME) == a_halt()


def test_a_reset_lifts_a_halt(lake):
    begin_epoch(lake, INGEST, 2)
    assert halts.standing(lake, NAME) is None
    with pytest.raises(NotHaltedError, match="is not halted"):
        halts.decide(lake, NAME, "skip", by="ada")
    halts.note_halt(lake, a_halt(epoch=2, batch_id=0), after=1)
    assert halts.all_standing(lake) == {NAME: a_halt(epoch=2, batch_id=0)}


@pytest.mark.parametrize("name", ["top_products", "../ingest_sales", ""])
def test_what_is_not_halted_is_refused_with_what_is(lake, name):
    with pytest.raises(NotHaltedError, match=r"is not halted .*Nothing was changed\. Halted: ingest_sales\."):
        halts.decide(lake, name, "resume", by="ada")
    assert decisions_of(lake, name) == []


def test_a_decision_is_made_once_and_the_second_one_hears_of_it(lake):
    halts.decide(lake, NAME, "resume", by="ada")
    with pytest.raises(NotHaltedError, match=r"`resume` by ada at .*was about batch 7 of epoch 1"):
        halts.decide(lake, NAME, "skip", by="bob")


def test_a_decision_about_another_halt_than_was_seen_is_refused(lake):
    seen = halts.standing(lake, NAME)
    halts.decide(lake, NAME, "resume", by="ada")
    halts.note_halt(lake, a_halt(since=NOW + timedelta(hours=1)), after=2)
    with pytest.raises(NotHaltedError, match="got another one by now"):
        halts.decide(lake, NAME, "skip", by="bob", expected=seen)
    assert halts.standing(lake, NAME) is not None


def test_of_several_that_decide_at_once_one_counts(lake):
    def decide(name):
        try:
            return halts.decide(lake, NAME, "skip", by=name)
        except NotHaltedError:
            return None

    with ThreadPoolExecutor(4) as pool:
        (counts,) = [found for found in pool.map(decide, ["ada", "bob", "eve", "kim"]) if found]
    assert halts.records(lake, NAME).newest() == (2, counts)


def test_a_driver_that_was_overtaken_does_not_halt_what_was_decided(lake):
    halts.note_halt(lake, a_halt(since=NOW + timedelta(hours=1)), after=0)
    assert halts.standing(lake, NAME) == a_halt(), "both have run the same batch: the first one counts"
    halts.decide(lake, NAME, "skip", by="ada")
    with pytest.raises(ConcurrentDriverError, match="another driver has run batch 7 of epoch 1"):
        halts.note_halt(lake, a_halt(), after=1)
    assert halts.records(lake, NAME).newest()[1].choice == "skip"


def test_what_it_says_has_no_values_of_events():
    told = str(a_halt().error())
    assert "halted since 2026-03-01 12:00:00 UTC" in told
    assert "batch 7 of epoch 1 breaks no refunds (3 rows)" in told
    assert "`tidemark resume ingest_sales`" in told
    assert "-5" not in told


# --- where it is shown ---


def tidemark(*arguments):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_the_command_decides_for_the_system_user_or_whoever_is_named(lake, monkeypatch):
    monkeypatch.setenv("LOGNAME", "grace")
    done = tidemark("resume", NAME, "--quarantine", "--comment", "as agreed", "--lake", lake.uri)
    assert done.exit_code == 0, done.output
    assert "`quarantine` for batch 7 of epoch 1 is decided, by grace" in done.output
    assert f"tidemark run {NAME}" in done.output
    halts.note_halt(lake, a_halt(), after=2)
    assert tidemark("resume", NAME, "--by", "ada", "--lake", lake.uri).exit_code == 0
    rows = [(row["action"], row["decided_by"], row["comment"]) for row in decisions_of(lake, NAME)]
    assert rows == [("resume", "ada", ""), ("quarantine", "grace", "as agreed")]


def test_the_command_refuses_two_choices_and_what_is_not_halted(lake):
    both = tidemark("resume", NAME, "--skip", "--quarantine", "--lake", lake.uri).exception
    assert isinstance(both, DefinitionError)
    assert "got both. Nothing was changed" in str(both)
    assert isinstance(tidemark("resume", "top_products", "--lake", lake.uri).exception, NotHaltedError)
    assert halts.standing(lake, NAME) == a_halt()


def test_the_status_shows_it_deployed_or_not_with_what_to_run(lake):
    for deployed in (False, True):
        if deployed:
            deploy(lake, [INGEST])
        done = tidemark("status", "--lake", lake.uri)
        assert done.exit_code == 1
        assert "ingest_sales halted since 2026-03-01 12:00:00 UTC" in done.output
        assert "such as: quantity is -5" in done.output
        assert "tidemark resume ingest_sales --quarantine" in done.output


def driving(lake, state, *, error=None, generation=1):
    """What a living driver of the job says of the pipeline."""
    job, now = INGEST.job, datetime.now(UTC)
    if not terms.records(lake, job).newest_number():
        terms.records(lake, job).append(1, terms.Term(host="h", supervisor="s", begun_at=now))
        status.records(lake, job).append(1, status.Status(job=job, state="running", since=now, term=1, order=1))
    progressed = now if state == "running" else None
    seen = PipelinePulse(generation=generation, state=state, since=now, error=error, progressed_at=progressed)
    pulse.beat(
        lake,
        Pulse(
            job=job, term=1, host="h", pid=1, pid_born="", started_at=now, at=now, sequence=1, pipelines={NAME: seen}
        ),
    )


def test_the_monitor_tells_of_it_and_of_nothing_else(lake):
    deploy(lake, [INGEST])
    driving(lake, "halted", error="it is halted")
    (report,) = monitor.look(lake, now=datetime.now(UTC)).reports
    (breach,) = report.breaches
    assert breach.startswith("It is halted: batch 7 of epoch 1 breaks no refunds (3 rows)")
    assert "tidemark resume ingest_sales" in breach
    assert breach.endswith("#halted")
    assert "-5" not in breach
    assert report.summary.startswith("halted")
    halts.decide(lake, NAME, "skip", by="ada")
    assert monitor.look(lake, now=datetime.now(UTC)).reports[0].healthy


def test_a_deploy_says_that_it_is_halted_and_does_not_wait_for_it(lake):
    (step,) = plan(lake, [INGEST]).steps
    assert step.why.endswith("it is halted, and runs only after a decision: tidemark resume ingest_sales")
    ordered = deploy(lake, [INGEST])
    driving(lake, "halted", error="it is halted")
    with pytest.raises(DeployError, match="ingest_sales: halted: it is halted"):
        await_running(lake, ordered, timeout=timedelta(minutes=1))


CHANGED = an_ingest(trigger_interval=timedelta(seconds=2))


def changed_by_a_deploy(lake, *, halts_at=None, driver=None):
    """What a guarded deploy of another version says, where the one before is deployed; the order that then stands."""
    deploy(lake, [INGEST])
    ordered = order(lake, plan(lake, [CHANGED]), by="a test", say=lambda _: None)
    if halts_at is not None:
        halts.note_halt(lake, halts_at, after=0)
    driving(lake, "halted", error="it is halted", generation=2)
    wait = {"timeout": timedelta(minutes=1), "by": "a test", "say": lambda _: None, "sleep": driver or pytest.fail}
    with pytest.raises(DeployError) as raised:
        watch(lake, Deployment.model_validate_json(ordered.model_dump_json()), mode="guarded", **wait)
    return str(raised.value), orders.records(lake, INGEST.job).newest()[1].pipelines[NAME]


def test_a_fix_for_what_is_halted_stays_ordered_until_somebody_decides(lake):
    told, after = changed_by_a_deploy(lake)
    assert after.parsed() == CHANGED
    assert "It does not start until you decide: `tidemark resume ingest_sales`" in told
    assert "The order remains" in told
    assert "versions before" not in told
    assert (halts.standing(lake, NAME), decisions_of(lake, NAME)) == (a_halt(), [])


def test_a_version_that_halts_gives_way_to_one_that_tries_the_batch_again(tmp_path):
    found = a_lake(tmp_path)
    open_epoch(found, INGEST)

    def goes_on_once_that_is_decided(_):
        if halts.standing(found, NAME) is None:
            driving(found, "running", generation=3)

    told, after = changed_by_a_deploy(found, halts_at=a_halt(), driver=goes_on_once_that_is_decided)
    assert (after.parsed(), after.generation) == (INGEST, 3)
    assert "The versions before run again, from where they were: ingest_sales" in told
    assert "ingest_sales: halted: batch 7 of epoch 1 breaks no refunds (3 rows)" in told
    assert "such as: quantity is -5" in told
    assert "tidemark resume" not in told, "nobody has to decide about it"
    (row,) = decisions_of(found, NAME)
    assert (row["action"], row["decided_by"]) == ("resume", "a test, guarded")


def test_where_the_version_before_halts_as_well_both_errors_are_told(tmp_path):
    found = a_lake(tmp_path)
    open_epoch(found, INGEST)

    def halts_again(_):
        halts.note_halt(found, a_halt(broken={"older rule": 5}), after=2)
        driving(found, "halted", error="older rule, 5 rows", generation=3)

    told, after = changed_by_a_deploy(found, halts_at=a_halt(), driver=halts_again)
    assert after.parsed() == INGEST
    assert "batch 7 of epoch 1 breaks no refunds" in told
    assert "do not run yet either: ingest_sales. ingest_sales: halted: older rule, 5 rows" in told
    assert halts.standing(found, NAME).broken == {"older rule": 5}


def test_a_version_that_had_failed_is_none_to_go_back_to(tmp_path):
    found, wait = a_lake(tmp_path), {"timeout": timedelta(minutes=1), "by": "a test", "say": lambda _: None}
    open_epoch(found, INGEST)
    deploy(found, [INGEST])
    driving(found, "failed", error="no such topic")
    ordered = order(found, plan(found, [CHANGED]), by="a test", say=lambda _: None)
    driving(found, "failed", error="no such topic either", generation=2)
    with pytest.raises(DeployError, match=r"no such topic either$"):
        watch(found, ordered, mode="guarded", **wait)
    assert orders.records(found, INGEST.job).newest()[1].pipelines[NAME].parsed() == CHANGED


def test_a_version_that_nobody_has_tried_is_not_taken_back(tmp_path, monkeypatch):
    found = a_lake(tmp_path)
    open_epoch(found, INGEST)
    deploy(found, [INGEST])
    ordered = order(found, plan(found, [CHANGED]), by="a test", say=lambda _: None)
    monkeypatch.setattr(awaiting, "LEASE_S", 0)
    wait = {"timeout": timedelta(minutes=1), "by": "a test", "say": pytest.fail, "sleep": lambda _: None}
    with pytest.raises(DeployError, match=r"no supervisor watches .* The order remains"):
        watch(found, ordered, mode="guarded", **wait)
    assert orders.records(found, INGEST.job).newest()[1].pipelines[NAME].parsed() == CHANGED


def test_whoever_decides_hears_whether_the_batch_is_committed_or_halts(lake):
    deploy(lake, [INGEST])
    decided = halts.decide(lake, NAME, "skip", by="ada")
    told, looks = [], []

    def commit_at_the_second_look(_):
        looks.append(1)
        if len(looks) == 2:
            entry = a_batch(4, on_time=0, rows=0, quarantined=4, reasons={"skipped": 4})
            stamp = a_stamp(7, pipeline=NAME, ledger=entry)
            write(lake, "bronze.sales", {"sale_id": ["x"]}, stamp=stamp)

    wait = {"timeout": timedelta(minutes=1), "on_progress": told.append, "sleep": commit_at_the_second_look}
    await_carried_out(lake, decided, **wait)
    assert told == ["ingest_sales: batch 7 of epoch 1 is committed: 4 read, 0 written, 4 set aside (skipped 4)"]

    halts.note_halt(lake, a_halt(batch_id=8), after=2)
    decided = halts.decide(lake, NAME, "resume", by="ada")
    again = lambda _: halts.note_halt(lake, a_halt(batch_id=8), after=4)  # noqa: E731
    with pytest.raises(HaltedError, match="batch 8 of epoch 1 breaks"):
        await_carried_out(lake, decided, **{**wait, "sleep": again})


# --- approvals ---


def test_a_plan_is_shown_to_the_person_line_by_line():
    plan = {"text": "gold.a goes back\n  table gold.a__late: nothing\n"}
    assert Template(line_by_line("plan['text']")).render(plan=plan) == (
        "- gold.a goes back\n- table gold.a__late: nothing\n"
    )


@pytest.mark.parametrize(
    ("chosen", "person", "expected"),
    [
        (["Approve"], {"id": "7", "name": "ada"}, Answer(approved=True, by="ada")),
        (["Reject"], {"id": "7", "name": "ada"}, Answer(approved=False, by="ada")),
        (["Approve"], {"id": "7", "name": ""}, Answer(approved=True, by="7")),
    ],
)
def test_an_answer_has_the_name_of_the_person(chosen, person, expected):
    assert answer_of({"chosen_options": chosen, "responded_by_user": person}) == expected


def test_nothing_is_done_in_nobodys_name():
    with pytest.raises(ValueError, match="expected an answer by a person"):
        answer_of({"chosen_options": ["Approve"], "responded_by_user": None})


# --- batches that cannot be computed ---


@pytest.mark.parametrize(
    ("found", "condition"),
    [
        ([("ArithmeticException",), ("SparkArithmeticException", "DIVIDE_BY_ZERO", "22012")], "DIVIDE_BY_ZERO"),
        ([("SparkException",), ("SparkNumberFormatException", "CAST_INVALID_INPUT", "22018")], "CAST_INVALID_INPUT"),
        ([("SparkException", "TASK_WRITE_FAILED", "58030"), ("SparkDateTimeException", "X", "22008")], "X"),
        ([("SparkRuntimeException", "USER_RAISED_EXCEPTION", "P0001")], "USER_RAISED_EXCEPTION"),
        ([("DeltaInvariantViolationException", "DELTA_NOT_NULL", "23502")], "DELTA_NOT_NULL"),
        ([("SparkUpgradeException", "INCONSISTENT_BEHAVIOR_CROSS_VERSION.PARSE", "42K0B")], "INCONSISTENT_BEHAVIOR"),
        ([("SparkException", "FAILED_READ_FILE", "KD001"), ("IOException",)], None),
        ([("SparkException",), ("SparkArithmeticException", "X", "22012"), ("FileNotFoundException",)], None),
        ([("OutOfMemoryError",)], None),
        ([("SparkException", "INTERNAL_ERROR", "XX000")], None),
        ([("SparkException", "CANNOT_LOAD_STATE_STORE", "58030")], None),
        ([("AnalysisException", "UNRESOLVED_COLUMN", "42703")], None),
        ([("SparkIllegalArgumentException", "INVALID_CONF_VALUE.TIME_ZONE", "22022")], None),
        ([("LedgerError",)], None),
        ([], None),
    ],
)
def test_only_what_rows_hold_is_a_fault_of_a_batch(found, condition):
    told = condition_of([Thrown(*each) for each in found])
    assert (told or "").startswith(condition or "")
    assert (told is None) == (condition is None)


def test_errors_without_java_are_told_by_their_kind():
    error = ValueError("as told")
    error.__cause__ = KeyError("as found")
    assert thrown(error) == (Thrown("ValueError"), Thrown("KeyError"))


def test_a_batch_that_cannot_be_computed_shows_no_values_and_stays_whole(tmp_path):
    found = a_lake(tmp_path)
    open_epoch(found, INGEST)
    halt = a_halt(broken={}, failed="CAST_INVALID_INPUT", samples=("'ada@example.com' cannot be cast",))
    halts.note_halt(found, halt, after=0)
    assert halt.what == "batch 7 of epoch 1 cannot be computed (CAST_INVALID_INPUT); no result of it was written"
    assert "example.com" not in str(halt.error())
    assert halt.choices == ("resume", "skip")
    refused = tidemark("resume", NAME, "--quarantine", "--lake", found.uri).exception
    assert isinstance(refused, ChoiceRefusedError)
    assert f"tidemark resume {NAME} --skip" in str(refused)
    assert halts.standing(found, NAME) == halt
    shown = tidemark("status", "--lake", found.uri).output
    assert "cannot be computed (CAST_INVALID_INPUT)" in shown
    assert f"tidemark resume {NAME} --skip" in shown
    assert "--quarantine" not in shown
    assert tidemark("resume", NAME, "--skip", "--by", "ada", "--lake", found.uri).exit_code == 0
    (row,) = decisions_of(found, NAME)
    assert (row["action"], row["subject"]) == ("skip", "batch 7 of epoch 1: CAST_INVALID_INPUT")


def test_a_pipeline_has_a_quarantine_where_a_batch_of_it_was_skipped(tmp_path):
    found, definition = a_lake(tmp_path), a_pipeline()
    assert plan_on(found, definition).table("quarantine") is None
    write(found, "gold.hourly_sales__quarantine", {"reason": ["skipped"], "_epoch": [1]})
    planned = plan_on(found, definition)
    assert [table.role for table in planned.tables] == ["quarantine", "late", "result"]
    assert [each.label for each in planned.invariants if each.table.role == "quarantine"] == ["quarantine"]
    assert planned.equations == plan_on(a_lake(tmp_path / "other"), definition).equations
