"""Reset a pipeline: what will go is reported, a person approves it, then a new epoch begins."""

from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.approvals import approval, line_by_line
from tidemark_dags.batch import POOL, Reset
from tidemark_dags.forms import left_out, pipeline_field
from tidemark_dags.tasks import log, pipeline_of, reporting_errors, this_lake

DOC = """
Begins a new **epoch** of a pipeline: it reads its source again from the start, with its definition as it is now. After
a change that its checkpoint does not take; [Deploy streams](/dags/deploy_streams) says when that is so.

Often something gentler will do: [Manage checkpoints](/dags/manage_checkpoints) goes back to a savepoint, and `tidemark
rebuild` swaps in results that a batch has computed and compared.

**The form**
- *Pipeline*: one that has run, and does not run now: [Stop streams](/dags/stop_streams) before.
- *Rows*: `empty` removes the rows of its tables, which are computed again. `keep` leaves them; what its source still
  holds comes twice.
- *Comment*: why; kept in `ops.decisions`.

**What happens**
- `look`: its log has what will be done, and which pipelines notice it. Red: it cannot be done.
- `approval` waits for a person: open this run, *Required Actions*, **Approve** or **Reject**. After 12 hours without an
  answer it is red, and nothing is done.
- `carry_out` does it in the name of **whoever has answered**; after a rejection it is skipped. Then
  deploy the pipeline, and reset its readers.
"""


@dag(
    dag_display_name="Reset pipeline",
    description="Begin a new epoch of a pipeline, with an approval.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipeline": pipeline_field(description="The one that begins again."),
        "rows": Param(
            "empty",
            type="string",
            enum=["empty", "keep"],
            title="Rows",
            description="What becomes of the rows of its tables.",
        ),
        "comment": Param("", type="string", title="Comment", description="Why; kept in ops.decisions."),
    },
)
def reset_pipeline() -> None:
    """Report, ask a person, carry out what was decided."""

    @task(show_return_value_in_logs=False)
    def look() -> str:
        """What will be done; refuses a pipeline that runs."""
        plan = _plan()
        rows = "lose their rows" if plan.empty_tables else "keep their rows"
        text = "\n".join([f"{plan.pipeline} begins a new epoch, its tables {rows}.", *plan.notices])
        log(text)
        return text

    asked = approval(
        subject="Reset {{ params.pipeline }}?",
        body=line_by_line("ti.xcom_pull(task_ids='look')") + "\n{{ params.comment }}",
    )
    look() >> asked >> Reset(task_id="carry_out", pipeline="{{ params.pipeline }}", pool=POOL)


def _plan() -> Any:
    from spark_jobs.operations.reset.plan import left_on, plan_reset

    params, lake = get_current_context()["params"], this_lake()
    with reporting_errors():
        left = left_on(lake, params["pipeline"])
        definition = left or pipeline_of(lake, params["pipeline"])
        return plan_reset(lake, definition, keep_tables=params["rows"] == "keep", registered=left is None)


reset_pipeline()
