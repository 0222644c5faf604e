"""Deploy pipelines: plan, order, wait for the first progress."""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.forms import left_out, pipelines_field
from tidemark_dags.tasks import fail, log, reporting_errors, this_lake

from spark_jobs.pipelines import problems, resolve, with_sources

DOC = """
Runs pipelines, or brings those that run to the definition in `spark_jobs/pipelines/`.
**Deploying what already runs changes nothing.**

**The form**
- *Pipelines*: one or more of the registered ones.
- *With sources*: also the ingests that fill the tables which they read.
- *Mode*: `guarded`: a version that fails, halts, or makes no progress in time, gives way to the one that ran before,
  which goes on from where it was; the run is red and says why. Of a pipeline that was halted or had failed already
  the order remains, so that a fix can be deployed. `direct`: its order remains. `shadow`: each pipeline that has
  changed runs beside the version that runs, into a table of its own; [Manage checkpoints](/dags/manage_checkpoints)
  compares the two, and promotes or drops it. *With sources* has no meaning there.
- *Wait*: how long until the first progress.

**What to look at**
- The log of `plan`: what will happen to each pipeline, job by job, and each field that has changed. Nothing is ordered
  if a pipeline needs a new epoch, because its checkpoint does not take the new definition: the log has the commands.
- The log of `deploy`: the savepoint of each pipeline that changes, and what was ordered, with the generation that each
  pipeline is to reach. It is red, and nothing is ordered, if somebody else has deployed or stopped one since the plan.
- `await_progress`: green when each pipeline has finished a batch, or found nothing to read. Red: its log ends with
  **the pipeline's own error**, or with the last lines of its driver.

The streams outlive this run, and Airflow: a supervisor beside it starts the drivers and keeps them up. From then on
look at [Monitor streams](/dags/monitor_streams). To end them: [Stop streams](/dags/stop_streams).
"""


@dag(
    dag_display_name="Deploy streams",
    description="Run pipelines, or bring those that run to their newest definition.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipelines": pipelines_field(
            description="What is to run. Others that run already are not touched.", only_registered=True
        ),
        "with_sources": Param(
            True,
            type="boolean",
            title="With sources",
            description="Also the ingests that fill the tables which the pipelines read.",
        ),
        "mode": Param(
            "guarded",
            type="string",
            enum=["guarded", "direct", "shadow"],
            title="Mode",
            description="guarded: a version that fails, or makes no progress in time, gives way to the one before. "
            "direct: its order remains. shadow: a changed version runs beside, into a table of its own.",
        ),
        "wait_minutes": Param(
            3,
            type="number",
            exclusiveMinimum=0,
            title="Wait (minutes)",
            description="Until the first progress. Longer, and the run fails; Mode says what becomes of the order.",
        ),
    },
)
def deploy_streams() -> None:
    """Three tasks, one after the other."""

    @task(show_return_value_in_logs=False)
    def plan() -> dict[str, Any]:
        """What will happen; refuses what cannot."""
        from spark_jobs.control.desired import deployment
        from spark_jobs.control.desired.deployment_text import as_text
        from spark_jobs.operations.shadow.plan import plan_shadows

        for problem in problems():
            log(f"left out: {problem.message}", logging.WARNING)
        with reporting_errors():
            params, lake = get_current_context()["params"], this_lake()
            definitions = resolve(params["pipelines"])
            if params["mode"] == "shadow":
                planned, told = plan_shadows(lake, definitions)
                log("\n".join(told))
            else:
                definitions = with_sources(definitions) if params["with_sources"] else definitions
                planned = deployment.plan(lake, definitions)
        log(as_text(planned))
        if planned.blocked:
            raise fail("\n".join([*map(deployment.refusal, planned.blocked), "Nothing was ordered."]))
        return planned.model_dump(mode="json")

    @task(show_return_value_in_logs=False)
    def deploy(planned: dict[str, Any]) -> dict[str, Any]:
        """Saves what is to change and writes the orders, unless somebody has changed something meanwhile."""
        from spark_jobs.control.desired.deployment import Plan
        from spark_jobs.operations.deploy.execute import order

        with reporting_errors():
            ordered = order(this_lake(), Plan.model_validate(planned), by=_by(), say=log)
        return ordered.model_dump(mode="json")

    @task(show_return_value_in_logs=False)
    def await_progress(ordered: dict[str, Any]) -> None:
        """Waits until every pipeline has made its first progress; guarded, the version before goes on where not."""
        from spark_jobs.operations.deploy.execute import Deployment, watch

        params = get_current_context()["params"]
        timeout = timedelta(minutes=params["wait_minutes"])
        with reporting_errors():
            deployment = Deployment.model_validate(ordered)
            watch(this_lake(), deployment, mode=params["mode"], timeout=timeout, by=_by(), say=log)

    await_progress(deploy(plan()))  # type: ignore[arg-type]  # tasks give references to their results


def _by() -> str:
    return f"deploy_streams run {get_current_context()['run_id']}"


deploy_streams()
