"""Manage checkpoints: look inside, save, go back, divide the state anew, remove what nothing needs; and shadows."""

from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.approvals import Question, approval, line_by_line
from tidemark_dags.batch import POOL, CheckpointCommand
from tidemark_dags.forms import left_out, pipeline_field
from tidemark_dags.tasks import fail, log, pipeline_of, reporting_errors, this_lake

DOC = """
What a pipeline starts from again: its checkpoint, and savepoints of it.

**The form**
- *Pipeline*: one that has run; also one that is registered nowhere any more.
- *Action*:
  - `show`: what the checkpoint holds, whether all that the next start needs is there, and which savepoints there are.
  - `savepoint`: saves it as it is after its newest batch. **A stream that runs is not held up.**
  - `restore`: goes back, with the tables and with the pipelines that read them. Name a savepoint, or a batch.
  - `rescale`: gives the state another number of partitions.
  - `prune`: removes what nothing needs any more: savepoints past their retention, what interruptions have left.
  - `compare shadow`: the version that [Deploy streams](/dags/deploy_streams) has ordered beside the one that runs, row
    by row.
  - `promote shadow`: puts its version in the place of the one that runs, as `tidemark rebuild` does; then the shadow
    goes. The pipeline need not be stopped before.
  - `drop shadow`: stops it, and removes its tables, its checkpoint and its savepoints.
- *Savepoint*: its name. *Batch*: to go back to one that the checkpoint still has. *Partitions*: for `rescale`.
- *Comment*: why; kept with the savepoint, or in `ops.decisions`.
- *Dry run*: only say what would be done.

**What happens**
- `look`: its log has what was asked for, or the plan: what is taken back in which table, how many rows, what is read
  again, which pipelines go along; of a shadow, how its rows differ. `show`, `savepoint`, `compare shadow` and a dry run
  end here. Red: it cannot be done, and why.
- `approval` waits for a person: open this run, *Required Actions*, **Approve** or **Reject**. After 12 hours without an
  answer it is red, and nothing is done.
- `carry_out` does what was approved, in the name of **whoever has answered**; it is red, and does nothing, if things
  have changed since. For `restore` and `rescale` pipelines must not run: [Stop streams](/dags/stop_streams) before,
  [Deploy streams](/dags/deploy_streams) after. After a rejection it is skipped; what was answered is in
  `ops.decisions`.

On a terminal: `tidemark checkpoints show`, `tidemark savepoint`, `tidemark restore`, `tidemark rescale`, `tidemark
checkpoints prune`, `tidemark shadow`.
"""

ACTIONS = [
    "show",
    "savepoint",
    "restore",
    "rescale",
    "prune",
    "compare shadow",
    "promote shadow",
    "drop shadow",
]


@dag(
    dag_display_name="Manage checkpoints",
    description="Look inside checkpoints, save, go back, rescale, prune; compare, promote and drop shadows.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipeline": pipeline_field(description="The one whose checkpoint it is."),
        "action": Param(
            "show",
            type="string",
            enum=ACTIONS,
            title="Action",
            description="What destroys waits for a person.",
        ),
        "savepoint": Param(
            None,
            type=["null", "string"],
            title="Savepoint",
            description="savepoint: its name, or none: the time. restore: the one to go back to.",
        ),
        "batch": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Batch",
            description="restore: to a batch that the checkpoint still has, in place of a savepoint.",
        ),
        "with_tables": Param(
            True,
            type="boolean",
            title="With tables",
            description="restore: off brings back the checkpoint alone, and is refused where rows would come twice.",
        ),
        "partitions": Param(
            None, type=["null", "integer"], minimum=1, title="Partitions", description="rescale: of the state."
        ),
        "comment": Param("", type="string", title="Comment", description="Why."),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Only say what would be done."),
    },
)
def manage_checkpoints() -> None:
    """Look, ask a person where something is taken away, carry out what was decided."""

    @task.short_circuit(show_return_value_in_logs=False)
    def look() -> Question:
        """What was asked for, or the plan; nothing, which skips the rest, where there is nothing to decide."""
        params, lake = get_current_context()["params"], this_lake()
        name = params["pipeline"]
        with reporting_errors():
            match params["action"]:
                case "show":
                    _show(name)
                    return Question()
                case "savepoint":
                    from spark_jobs.operations.savepoint.execute import take_savepoint

                    by = f"manage_checkpoints run {get_current_context()['run_id']}"
                    take_savepoint(lake, name, log, name=params["savepoint"], note=params["comment"], by=by)
                    return Question()
                case "restore":
                    found = _restore_plan(params)
                case "prune":
                    found = _prune_plan(name)
                case "compare shadow":
                    log(_shadow_beside(name))
                    return Question()
                case "promote shadow":
                    found = _promotion_plan(name)
                case "drop shadow":
                    found = _drop_plan(name)
                case _:
                    found = _rescale_plan(params)
        log(found["text"])
        if params["dry_run"] or not found["plan"]:
            log("Nothing was written: dry run." if params["dry_run"] else "Nothing to do.")
            return Question()
        return Question(found)

    found = look()
    asked = approval(
        subject="{{ params.action }}{{ ' of' if 'shadow' in params.action else '' }} {{ params.pipeline }}?",
        body=line_by_line("ti.xcom_pull(task_ids='look')['text']") + "\n{{ params.comment }}",
    )
    found >> asked >> CheckpointCommand(task_id="carry_out", pipeline="{{ params.pipeline }}", pool=POOL)


def _show(name: str) -> None:
    from spark_jobs.console.checkpoints import description_lines
    from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe
    from spark_jobs.lake.checkpoints.epochs import begun_with
    from spark_jobs.lake.checkpoints.savepoints import savepoints
    from spark_jobs.lake.checkpoints.verifying import verify
    from spark_jobs.operations.savepoint.text import description_lines as savepoint_lines

    lake = this_lake()
    checkpoint = checkpoint_of(lake, name)
    log("\n".join(description_lines(describe(checkpoint))))
    faults = verify(checkpoint, begun_with(checkpoint.epoch))
    log("\n".join(map(str, faults)) if faults else "next start   yes, all that it needs is there")
    for each in savepoints(lake, name):
        log("\n".join(savepoint_lines(each)))


def _restore_plan(params: dict[str, Any]) -> dict[str, Any]:
    from spark_jobs.operations.restore.plan import plan_restore
    from spark_jobs.operations.restore.text import restore_text

    lake = this_lake()
    plan = plan_restore(
        lake,
        pipeline_of(lake, params["pipeline"]),
        to=params["savepoint"],
        to_batch=params["batch"],
        with_tables=params["with_tables"],
        by="nobody yet",
        comment=params["comment"],
    )
    return {"text": restore_text(plan), "plan": plan.model_dump(mode="json")}


def _prune_plan(name: str) -> dict[str, Any]:
    from spark_jobs.operations.prune.plan import plan_prune
    from spark_jobs.operations.prune.text import prune_text

    plan = plan_prune(this_lake(), [name])
    text = prune_text(plan) or str(plan.nothing_to_do)
    return {"text": text, "plan": plan.model_dump(mode="json") if plan.remains else None}


def _shadow_beside(name: str) -> str:
    from spark_jobs.operations.shadow.compare import look
    from spark_jobs.operations.shadow.text import beside_text

    return beside_text(look(this_lake(), name))


def _promotion_plan(name: str) -> dict[str, Any]:
    from spark_jobs.operations.shadow.plan import plan_promotion
    from spark_jobs.operations.shadow.text import promotion_text

    lake = this_lake()
    plan = plan_promotion(lake, pipeline_of(lake, name))
    # Of an interrupted promotion the table has the new rows already: there is nothing to compare.
    beside = [_shadow_beside(name)] if plan.swaps else []
    return {"text": "\n".join([*beside, promotion_text(plan)]), "plan": plan.model_dump(mode="json")}


def _drop_plan(name: str) -> dict[str, Any]:
    from spark_jobs.operations.shadow.plan import plan_drop
    from spark_jobs.operations.shadow.text import drop_text

    plan = plan_drop(this_lake(), name)
    return {"text": drop_text(plan), "plan": plan.model_dump(mode="json")}


def _rescale_plan(params: dict[str, Any]) -> dict[str, Any]:
    from spark_jobs.operations.rescale.plan import plan_rescale
    from spark_jobs.operations.rescale.text import rescale_text

    if params["partitions"] is None:
        raise fail("rescale: expected a number of partitions. Nothing was changed.")
    plan = plan_rescale(this_lake(), params["pipeline"], params["partitions"])
    return {"text": rescale_text(plan), "plan": None if plan.nothing_to_do else {"partitions": params["partitions"]}}


manage_checkpoints()
