"""Quarantines as a person reads them, and replays in this process."""

from rich.console import Console

from spark_jobs.console.batch import repaired
from spark_jobs.console.running import session
from spark_jobs.console.tasks import showing_tasks
from spark_jobs.control.batch_reports import BatchReport
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay.execute import Done, ReplayRun, begin
from spark_jobs.operations.replay.lookup import execute
from spark_jobs.operations.replay.lookup_plan import LookupPlan
from spark_jobs.operations.replay.plan import ReplayPlan, plan_replay
from spark_jobs.operations.replay.text import done_text, looked_up_text
from spark_jobs.spec import Definition


def run_replay(
    out: Console, err: Console, lake: Lake, definition: Definition, plan: ReplayPlan, *, by: str, comment: str
) -> BatchReport:
    """Carries out what has begun before, then a plan; tells what each has done."""
    with session(lake, err, about=(definition,)) as spark:
        done = []
        if (unfinished := open_replay(lake, definition.name)) is not None:
            done.append(_executed(out, ReplayRun(spark, lake, plan.ingest, unfinished)))
            # What it has taken out of the quarantine is not there any more.
            plan = plan_replay(lake, definition, plan.selection, after_another=True)
        if plan.found.rows:
            replay = begin(lake, plan, by=by, comment=comment)
            done.append(_executed(out, ReplayRun(spark, lake, plan.ingest, replay)))
    inserted = sum(sum(each.replayed.values()) for each in done)
    version = max((each.version for each in done if each.version is not None), default=None)
    return BatchReport(pipeline=definition.name, table=definition.sink.table, version=version, inserted=inserted)


def run_lookup(out: Console, err: Console, plan: LookupPlan, *, by: str, comment: str) -> BatchReport:
    """Looks events up again, then counts those that were found, and all others that wait for a repair."""
    target = plan.target
    with (
        session(target.lake, err, about=(target.pipeline,)) as spark,
        showing_tasks(spark, err, f"replay of {target.name}"),
    ):
        if not plan.nothing_to_do:
            done = execute(spark, plan, by=by, comment=comment)
            out.print(looked_up_text(done), highlight=False, markup=False, soft_wrap=True)
        target, repair = plan_repair(target.lake, target.pipeline)
        if repair.nothing_to_do:
            return BatchReport(pipeline=target.name, table=target.result, version=None)
        return repaired(out, spark, target, repair)


def _executed(out: Console, run: ReplayRun) -> Done:
    done = run.execute()
    out.print(done_text(done), highlight=False, markup=False, soft_wrap=True)
    return done
