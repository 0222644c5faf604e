"""Deploy pipelines: plan, order, wait for the first progress."""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.forms import left_out, pipelines_field
from tidemark_dags.plan import Step, as_text
from tidemark_dags.plan import plan as plan_deploy
from tidemark_dags.tasks import fail, tell, this_lake, told

from spark_jobs.pipelines import problems, resolve, with_sources

DOC = """
Runs pipelines, or brings those that run to the definition in `spark_jobs/pipelines/`.
**Deploying what already runs changes nothing.**

**The form**
- *Pipelines*: one or more of the registered ones.
- *With sources*: also the ingests that fill the tables which they read.
- *Wait*: how long until the first progress; if it takes longer the run fails, and the order stands.

**What to look at**
- The log of `plan`: what will happen to each pipeline, job by job. A pipeline is refused, and nothing is ordered, if
  its checkpoint was made with another definition.
- The log of `deploy`: what was ordered, with the generation that each pipeline is to reach.
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
        "wait_minutes": Param(
            3,
            type="number",
            exclusiveMinimum=0,
            title="Wait (minutes)",
            description="Until the first progress. Longer, and the run fails; the order stands.",
        ),
    },
)
def deploy_streams() -> None:
    """Three tasks, one after the other."""

    @task
    def plan() -> list[str]:
        """What will happen; refuses what cannot."""
        from spark_jobs.control import orders
        from spark_jobs.control.awaiting import failed_generations
        from spark_jobs.lake.checkpoints import refuse_changed_definition
        from spark_jobs.lake.errors import CheckpointError

        for problem in problems():
            tell(f"left out: {problem.told}", logging.WARNING)
        with told():
            params, lake = get_current_context()["params"], this_lake()
            definitions = resolve(params["pipelines"])
            if params["with_sources"]:
                definitions = with_sources(definitions)
            refused = {}
            for definition in definitions:
                try:
                    refuse_changed_definition(lake, definition)
                except CheckpointError as error:
                    refused[definition.name] = str(error)
            steps = plan_deploy(
                definitions, desired=orders.all_desired(lake), failed=failed_generations(lake), refused=refused
            )
        tell(f"On {lake.uri}:\n{as_text(steps)}")
        _refuse(steps)
        return [step.pipeline for step in steps]

    @task
    def deploy(names: list[str]) -> list[dict[str, Any]]:
        """Writes the order."""
        from spark_jobs.control import orders
        from spark_jobs.control.awaiting import failed_generations

        with told():
            lake, run_id = this_lake(), get_current_context()["run_id"]
            ordered = orders.deploy(
                lake, resolve(names), by=f"deploy_streams run {run_id}", failed=failed_generations(lake)
            )
        for each in ordered:
            change = "ordered" if each.changed else "unchanged"
            tell(f"{each.pipeline}: {change} (generation {each.generation}, job {each.job})")
        return [each.model_dump(mode="json") for each in ordered]

    @task
    def await_progress(ordered: list[dict[str, Any]]) -> None:
        """Waits until every pipeline has made its first progress."""
        from spark_jobs.control.awaiting import await_running
        from spark_jobs.control.orders import Ordered

        with told():
            timeout = timedelta(minutes=get_current_context()["params"]["wait_minutes"])
            await_running(this_lake(), [Ordered(**each) for each in ordered], timeout=timeout, tell=tell)

    await_progress(deploy(plan()))  # type: ignore[arg-type]  # tasks give references to their results


def _refuse(steps: tuple[Step, ...]) -> None:
    refused = [step for step in steps if step.action == "refuse"]
    if refused:
        raise fail("\n".join(["Nothing was ordered.", *(step.why for step in refused)]))


deploy_streams()
