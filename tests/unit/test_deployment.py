"""The plan of a deploy as a value, what a person sees of it, and how it is executed. No JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.deployment import (
    Action,
    DeploymentContext,
    Plan,
    StalePlanError,
    Step,
    decide,
    execute,
    plan,
)
from spark_jobs.control.desired.deployment_text import as_text
from spark_jobs.control.desired.orders import DesiredState, Order
from spark_jobs.control.supervision import status
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch, begin_epoch, open_epoch
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.pipelines import registry, with_sources
from spark_jobs.plan.changes import Change, Compatibility
from spark_jobs.spec import Alerts, Definition, DefinitionError, Sink, Table
from tests.support.builders import a_lake, a_pipeline, an_aggregate, an_ingest_of_sales
from tests.support.deploying import deploy

SALES = a_pipeline()
COUNTED_OTHERWISE = a_pipeline(steps=(an_aggregate(measures={"units": "max(quantity)"}),))
AT = datetime(2026, 1, 1, tzinfo=UTC)
WHY = "the state has measures as they were; a rebuild computes others of all events"
STEPS = Change("steps", Compatibility.REBUILD, WHY)


def order(definition: Definition = SALES, **changes: Any) -> Order:
    values = {
        "state": "running",
        "generation": 3,
        "definition": definition.to_json(),
        "ordered_at": AT,
        "ordered_by": "a test",
    }
    return Order(**(values | changes))


def epoch(definition: Definition = SALES, number: int = 2) -> Epoch:
    return Epoch(pipeline=definition.name, number=number, definition=definition.to_json(), begun_at=AT)


def found(*known: tuple[str, Order], begun: Epoch | None = None, failed: int = 0, taken: str = "") -> DeploymentContext:
    """What a lake knows of `hourly_sales`, by job."""
    return DeploymentContext(
        {job: DesiredState(job=job, pipelines={SALES.name: each}) for job, each in known},
        {SALES.name: begun} if begun else {},
        {SALES.name: failed} if failed else {},
        {SALES.name: taken} if taken else {},
    )


def a_step(action: Action, why: str, **fields: Any) -> Step:
    return Step(**({"pipeline": SALES.name, "job": "streams", "action": action, "why": why} | fields))


class TestWhatBecomesOfAPipeline:
    def test_what_was_never_deployed_starts(self) -> None:
        assert decide(SALES, DeploymentContext()) == a_step(Action.START, "for the first time", generation=1)

    def test_what_runs_so_already_is_unchanged(self) -> None:
        expected = a_step(Action.UNCHANGED, "already runs this way", generation=3)
        assert decide(SALES, found(("streams", order()), begun=epoch())) == expected

    def test_what_was_stopped_starts_again(self) -> None:
        expected = a_step(Action.START, "it was stopped", generation=4)
        assert decide(SALES, found(("streams", order(state="stopped")))) == expected

    def test_what_has_failed_for_good_is_tried_again(self) -> None:
        expected = a_step(Action.RESTART, "it had failed", generation=4)
        assert decide(SALES, found(("streams", order()), failed=3)) == expected

    def test_a_failure_of_an_earlier_generation_does_not_count(self) -> None:
        assert decide(SALES, found(("streams", order()), failed=2)).action is Action.UNCHANGED

    def test_a_setting_that_may_change_under_a_checkpoint_means_a_restart(self) -> None:
        before = a_pipeline(trigger_interval="30 seconds", alerts=Alerts(max_late_share=0.5))
        change = Change("trigger_interval", Compatibility.SAFE, "how often batches start is no part of what they hold")
        alerts = Change("alerts", Compatibility.SAFE, "they are looked at from outside")
        expected = a_step(Action.RESTART, "changed: trigger_interval, alerts", generation=4, changes=(change, alerts))
        assert decide(SALES, found(("streams", order(before)), begun=epoch(before))) == expected

    def test_what_its_checkpoint_does_not_take_needs_a_new_epoch(self) -> None:
        why = "its definition has changed (steps) since epoch 2 of its checkpoint began"
        expected = a_step(Action.NEW_EPOCH, why, changes=(STEPS,))
        assert decide(COUNTED_OTHERWISE, found(("streams", order()), begun=epoch())) == expected

    def test_what_changed_before_any_checkpoint_began_is_safe(self) -> None:
        step = decide(COUNTED_OTHERWISE, found(("streams", order())))
        safe = Change("steps", Compatibility.SAFE, "no checkpoint uses its old value")
        assert (step.action, step.changes) == (Action.RESTART, (safe,))

    def test_what_a_reset_has_made_room_for_is_safe(self) -> None:
        """Stopped and reset, with the definition as it is now."""
        known = found(("streams", order(state="stopped")), begun=epoch(COUNTED_OTHERWISE))
        step = decide(COUNTED_OTHERWISE, known)
        assert (step.action, step.changes[0].why) == (Action.START, "epoch 2 began with its new value")

    def test_another_kind_of_the_same_name_is_refused(self) -> None:
        ingest = an_ingest_of_sales(name=SALES.name)
        step = decide(SALES, found(begun=epoch(ingest)))
        assert step.action is Action.REFUSED
        assert [change.field for change in step.changes] == ["kind"]
        assert deployment.refusal(step) == (
            "pipeline `hourly_sales`: its definition has changed (kind) since epoch 2 of its checkpoint began. kind: "
            "it was an ingest; give the pipeline a name of its own."
        )

    def test_a_table_that_holds_rows_of_another_pipeline_is_refused(self) -> None:
        assert decide(SALES, found(taken="its table holds rows of `x`")) == a_step(
            Action.REFUSED, "its table holds rows of `x`"
        )

    def test_a_checkpoint_of_another_version_needs_a_new_epoch(self) -> None:
        unreadable = epoch().model_copy(update={"definition": '{"kind": "pipeline", "of_tomorrow": 1}'})
        step = decide(SALES, found(begun=unreadable))
        assert step.action is Action.NEW_EPOCH
        assert step.why == "epoch 2 began with a definition that this version of Tidemark cannot read"

    def test_a_pipeline_whose_job_has_changed_moves(self) -> None:
        moved = a_pipeline(job="nightly")
        job = Change("job", Compatibility.SAFE, "the checkpoint goes with the pipeline to another driver")
        assert decide(moved, found(("streams", order()), begun=epoch())) == a_step(
            Action.MOVE, "from job streams", job="nightly", generation=1, changes=(job,), leaves=("streams",)
        )

    def test_one_that_was_stopped_in_another_job_leaves_nothing(self) -> None:
        step = decide(a_pipeline(job="nightly"), found(("streams", order(state="stopped"))))
        assert (step.action, step.why, step.leaves) == (Action.START, "it was stopped", ())


class TestWhatAPersonSees:
    def test_the_whole_plan_reads_job_by_job(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        before = [
            an_ingest_of_sales(),
            a_pipeline(trigger_interval="30 seconds"),
            a_pipeline(name="daily_sales", sink=Sink("gold.daily")),
            a_pipeline(name="shop_totals", sink=Sink("gold.totals")),
        ]
        for definition in before[1:]:
            open_epoch(lake, definition)
        deploy(lake, before)
        begin_epoch(lake, an_ingest_of_sales(name="payments", sink=Sink("bronze.payments")), 1)
        now = [
            an_ingest_of_sales(),
            a_pipeline(alerts=Alerts(max_late_share=0.5)),
            a_pipeline(name="daily_sales", sink=Sink("gold.daily"), job="nightly"),
            a_pipeline(name="shop_totals", sink=Sink("gold.totals"), steps=COUNTED_OTHERWISE.steps),
            a_pipeline(name="payments", sink=Sink("gold.payments")),
            a_pipeline(name="fresh", sink=Sink("gold.fresh"), job="nightly"),
        ]
        assert (
            as_text(plan(lake, now)).replace(lake.uri, "LAKE")
            == """\
On LAKE:
job streams:
  unchanged          ingest_sales  already runs this way
  restart            hourly_sales  changed: trigger_interval, alerts
      trigger_interval  safe  how often batches start is no part of what they hold
      alerts            safe  they are looked at from outside
  needs a new epoch  shop_totals   its definition has changed (steps) since epoch 1 of its checkpoint began
      steps  needs a new epoch  the state has measures as they were; a rebuild computes others of all events
      Put the definition back, or begin a new epoch (or with --keep-tables: results so far stay):
        tidemark stop shop_totals
        tidemark reset shop_totals --empty-tables
        tidemark deploy shop_totals
      Or swap in results that a batch has computed and compared with these:
        tidemark stop shop_totals
        tidemark rebuild shop_totals
        tidemark deploy shop_totals
  refused            payments      its definition has changed (kind) since epoch 1 of its checkpoint began
      kind  refused  it was an ingest; give the pipeline a name of its own
job nightly:
  move               daily_sales   from job streams
      job  safe  the checkpoint goes with the pipeline to another driver
  start              fresh         for the first time
1 start, 1 restart, 1 move, 1 unchanged, 1 needs a new epoch, 1 refused. Nothing can be deployed together with \
shop_totals, payments; running pipelines continue."""
        )

    def test_a_plan_of_nothing_says_so(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        assert as_text(plan(lake, [])) == f"On {lake.uri}:\nnothing to deploy."


class TestExecution:
    def test_a_plan_writes_nothing(self, tmp_path: Path) -> None:
        plan(a_lake(tmp_path), [SALES, an_ingest_of_sales()])
        assert list(tmp_path.iterdir()) == []

    def test_it_does_what_the_plan_says_and_the_second_time_nothing(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        planned = plan(lake, [an_ingest_of_sales(), SALES])
        assert [(each.pipeline, each.generation, each.changed) for each in execute(lake, planned, by="a test")] == [
            ("ingest_sales", 1, True),
            ("hourly_sales", 1, True),
        ]
        assert not any(each.changed for each in execute(lake, planned, by="a test"))
        assert orders.records(lake, "streams").newest_number() == 1

    def test_it_deploys_what_was_planned_whatever_has_become_of_the_file(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        sent = plan(lake, [SALES]).model_dump(mode="json")
        execute(lake, Plan.model_validate(sent), by="a test")
        assert orders.all_desired(lake)["streams"].pipelines[SALES.name].parsed() == SALES

    def test_a_move_stops_in_the_old_job_and_starts_in_the_new_one(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        deploy(lake, [SALES, an_ingest_of_sales()])
        (moved,) = deploy(lake, [a_pipeline(job="nightly")])
        assert (moved.job, moved.generation, moved.changed) == ("nightly", 1, True)
        desired = orders.all_desired(lake)
        assert (set(desired["streams"].running), set(desired["nightly"].running)) == ({"ingest_sales"}, {SALES.name})

    def test_nothing_is_ordered_where_one_pipeline_needs_a_new_epoch(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        open_epoch(lake, SALES)
        with pytest.raises(CheckpointError, match=r"has changed \(steps\).*`tidemark reset hourly_sales") as refused:
            deploy(lake, [an_ingest_of_sales(), COUNTED_OTHERWISE])
        assert str(refused.value).endswith("Nothing was ordered.")
        assert orders.all_desired(lake) == {}

    def test_what_has_failed_for_good_is_ordered_again(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        deploy(lake, [SALES])
        failed = status.Status(job="streams", state="failed", since=AT, order=1)
        status.records(lake, "streams").append(1, failed)
        assert [(each.generation, each.changed) for each in deployment.deploy_again(lake, by="a test")] == [(2, True)]

    def test_of_many_who_deploy_the_same_at_once_one_orders_it(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        plans = [plan(lake, [SALES]) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            ordered = [each for (each,) in pool.map(lambda one: execute(lake, one, by="a test"), plans)]
        assert {each.generation for each in ordered} == {1}
        assert sum(each.changed for each in ordered) == 1


def stops(lake: Lake) -> None:
    orders.stop(lake, [SALES.name], by="somebody")


def deploys_another(lake: Lake) -> None:
    deploy(lake, [a_pipeline(trigger_interval="5 seconds")], by="somebody")


def begins_another_epoch(lake: Lake) -> None:
    begin_epoch(lake, COUNTED_OTHERWISE, 1)


def moves_it(lake: Lake) -> None:
    deploy(lake, [a_pipeline(job="nightly")], by="somebody")


class TestAStalePlan:
    @pytest.fixture
    def lake(self, tmp_path: Path) -> Lake:
        lake = a_lake(tmp_path)
        deploy(lake, [SALES])
        return lake

    @pytest.mark.parametrize("meanwhile", [stops, deploys_another, begins_another_epoch, moves_it])
    def test_is_refused_and_not_planned_again(self, lake: Lake, meanwhile: Callable[[Lake], None]) -> None:
        planned = plan(lake, [an_ingest_of_sales(), a_pipeline(trigger_interval="10 seconds")])
        meanwhile(lake)
        before = orders.all_desired(lake)
        with pytest.raises(StalePlanError, match=r"Nothing was ordered.*tidemark plan hourly_sales"):
            execute(lake, planned, by="a test")
        assert orders.all_desired(lake) == before

    def test_says_what_was_planned_and_what_would_be_done_now(self, lake: Lake) -> None:
        planned = plan(lake, [a_pipeline(trigger_interval="10 seconds")])
        stops(lake)
        with pytest.raises(StalePlanError) as stale:
            execute(lake, planned, by="a test")
        assert str(stale.value) == (
            "pipeline `hourly_sales`: the plan says `restart` (changed: trigger_interval, generation 2), and by now it "
            "would be `start` (it was stopped, generation 2). Somebody has changed it since. Nothing was ordered. See "
            "what would be done now: tidemark plan hourly_sales"
        )

    def test_does_not_come_of_other_pipelines_of_the_job(self, lake: Lake) -> None:
        planned = plan(lake, [a_pipeline(trigger_interval="10 seconds")])
        deploy(lake, [an_ingest_of_sales()])
        assert execute(lake, planned, by="a test")[0].generation == 2
        assert set(orders.all_desired(lake)["streams"].running) == {"ingest_sales", SALES.name}

    def test_of_another_lake_is_refused(self, lake: Lake, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        with pytest.raises(StalePlanError, match="the plan was made for"):
            execute(a_lake(tmp_path / "other"), plan(lake, [SALES]), by="a test")

    def test_is_noticed_between_the_last_look_and_the_order(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        planned = plan(lake, [a_pipeline(trigger_interval="10 seconds")])
        look = deployment.look

        def late(lake: Lake, definitions: Iterable[Definition]) -> DeploymentContext:
            seen = look(lake, definitions)
            stops(lake)
            return seen

        monkeypatch.setattr(deployment, "look", late)
        with pytest.raises(StalePlanError, match=r"where another order stands by now.*Nothing was ordered"):
            execute(lake, planned, by="a test")
        assert orders.all_desired(lake)["streams"].running == {}


class TestTheCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        file = tmp_path / "mine.py"
        file.write_text(
            "from tidemark import Pipeline, Sink, Table, Where\n"
            "source, steps = Table('bronze.sales'), (Where('quantity > 1'),)\n"
            "a = Pipeline(name='a', source=source, steps=steps, sink=Sink('gold.a'))\n"
        )
        return file

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["plan", *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    def test_what_can_be_deployed_ends_with_0_and_orders_nothing(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        code, told = self.run("top_products", "--with-sources", "--lake", lake.uri)
        assert (code, told.splitlines()[1:]) == (
            0,
            [
                "job streams:",
                "  start  ingest_sales  for the first time",
                "  start  top_products  for the first time",
                "2 start.",
            ],
        )
        assert orders.all_desired(lake) == {}

    def test_what_cannot_ends_with_1_and_the_commands_that_this_user_types(self, files: Path, tmp_path: Path) -> None:
        lake = a_lake(tmp_path / "my lake")
        assert self.run(str(files), "--lake", lake.uri)[0] == 0
        assert CliRunner().invoke(app, ["deploy", str(files), "--wait", "0 seconds", "--lake", lake.uri]).exit_code == 0
        open_epoch(lake, orders.all_desired(lake)["streams"].pipelines["a"].parsed())
        files.write_text(files.read_text().replace("> 1", "> 2"))
        code, told = self.run(str(files), "--lake", lake.uri)
        assert code == 1
        commands = [line.strip() for line in told.splitlines() if line.strip().startswith("tidemark")]
        assert commands == [
            f"tidemark stop a --lake '{lake.uri}'",
            f"tidemark reset {files}:a --empty-tables --lake '{lake.uri}'",
            f"tidemark deploy {files}:a --lake '{lake.uri}'",
        ]

    def test_without_a_name_it_plans_all_registered_and_names_what_else_runs(self, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        deploy(lake, [a_pipeline(name="elsewhere", sink=Sink("gold.elsewhere"))])
        code, told = self.run("--lake", lake.uri)
        assert code == 0
        assert all(f"  {name} " in told for name in registry())
        assert "Deployed, and not registered: elsewhere." in told


def test_with_sources_brings_the_ingests_first() -> None:
    brought = with_sources([registry()["guest_profile"]])
    assert [each.name for each in brought] == ["ingest_payments", "ingest_visits", "guest_profile"]


def test_with_sources_names_the_table_that_nobody_writes() -> None:
    with pytest.raises(DefinitionError, match=r"no registered definition writes bronze\.x"):
        with_sources([a_pipeline(source=Table("bronze.x"))])
