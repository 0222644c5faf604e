"""Stop pipelines: each finishes its batch and ends."""

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.forms import left_out, pipelines_field
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Ends pipelines: each finishes the batch that it is in. Nothing is lost, and its tables stay as they are.
Deployed again, it continues where it stopped.

**The form**
- *Pipelines*: one or more. One that is no longer in `spark_jobs/pipelines/` can be named in the JSON of the form.
- *Wait*: how long until they have ended; if it takes longer the run fails, and the order remains.

Other pipelines of the same job continue. When the last one of a job is stopped, its driver ends.
A driver that does not end by itself is killed by the supervisor after two minutes; the next start repairs what it left.
"""


@dag(
    dag_display_name="Stop streams",
    description="Let pipelines finish their batch and end.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipelines": pipelines_field(
            description="What is to stop. Readers of a stopped ingest keep running and wait.", only_registered=False
        ),
        "wait_minutes": Param(
            3,
            type="number",
            exclusiveMinimum=0,
            title="Wait (minutes)",
            description="Until they have ended. Longer, and the run fails; the order remains.",
        ),
    },
)
def stop_streams() -> None:
    """Two tasks, one after the other."""

    @task(show_return_value_in_logs=False)
    def stop() -> list[dict[str, Any]]:
        """Writes the order."""
        from spark_jobs.control.desired import orders

        with reporting_errors():
            context = get_current_context()
            ordered = orders.stop(
                this_lake(), context["params"]["pipelines"], by=f"stop_streams run {context['run_id']}"
            )
        for each in ordered:
            log(f"{each.pipeline}: {'is to stop' if each.changed else 'was stopped already'} (job {each.job})")
        return [each.model_dump(mode="json") for each in ordered]

    @task(show_return_value_in_logs=False)
    def await_stopped(ordered: list[dict[str, Any]]) -> None:
        """Waits until no driver runs any of them."""
        from spark_jobs.control.desired import awaiting
        from spark_jobs.control.desired.orders import OrderOutcome

        with reporting_errors():
            timeout = timedelta(minutes=get_current_context()["params"]["wait_minutes"])
            awaiting.await_stopped(this_lake(), [OrderOutcome(**each) for each in ordered], timeout=timeout)
        log("Stopped: " + ", ".join(each["pipeline"] for each in ordered))

    await_stopped(stop())  # type: ignore[arg-type]  # tasks give references to their results


stop_streams()
