"""Resume a halted pipeline: a choice is proposed, a person approves it, and it is carried out in that name."""

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.approvals import answer_of, approval
from tidemark_dags.forms import left_out, registered_field
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Decides how a pipeline goes on that is **halted**: a batch broke a rule with `on_failure="fail"`, or cannot be computed
(a division by zero, a text that is no number). No result of it was written, and the pipeline does not start again by
itself.

**The form**
- *Pipeline*: the halted one; [Monitor streams](/dags/monitor_streams) shows which are.
- *Choice*, for this batch only: `resume` tries it again, after a fix of the rule, the source or the code; `quarantine`
  sets the rows that break the rule aside, and writes the others (not of a batch that cannot be computed); `skip` sets
  all of its rows aside. Nothing is lost: what is set aside is in the quarantine.
- *Comment*: why; kept in `ops.decisions`.

**What happens**
- `find_halt`: red if the pipeline is not halted. Its log has the batch, the rule, the number of rows and samples.
- `approval` waits for a person: open this run, *Required Actions*, **Approve** or **Reject**. After 12 hours without an
  answer it is red, and nothing is done.
- `carry_out` records the decision in the name of **whoever has answered**, and waits until the batch is committed. Red:
  the batch breaks a rule again, or the pipeline does not run. After a rejection it only records that.

If the pipeline was halted at something else meanwhile, nothing is done. On a terminal: `tidemark resume NAME`.
"""


@dag(
    dag_display_name="Resume halted",
    description="Decide, with an approval, how a halted pipeline goes on.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipeline": registered_field(description="The halted one."),
        "choice": Param(
            "resume",
            type="string",
            enum=["resume", "quarantine", "skip"],
            title="Choice",
            description="For this batch only. resume: try it again, after a fix. quarantine: set aside the rows that "
            "break the rule. skip: set all of its rows aside.",
        ),
        "comment": Param("", type="string", title="Comment", description="Why; kept in ops.decisions."),
        "wait_minutes": Param(
            3,
            type="number",
            minimum=0,
            title="Wait (minutes)",
            description="Until the batch is committed. Longer, and the run fails; the decision remains.",
        ),
    },
)
def resume_halted() -> None:
    """Find the halt, ask a person, carry out what was decided."""

    @task(show_return_value_in_logs=False)
    def find_halt() -> dict[str, Any]:
        """The batch that it is about; refuses a pipeline that is not halted."""
        from spark_jobs.operations.resume.plan import plan_resume

        params = get_current_context()["params"]
        with reporting_errors():
            plan = plan_resume(this_lake(), params["pipeline"], params["choice"])
        log(f"{plan.pipeline}: {plan.halt.what}\n" + "\n".join(f"such as: {sample}" for sample in plan.halt.samples))
        return plan.halt.model_dump(mode="json")

    @task(show_return_value_in_logs=False)
    def carry_out(found: dict[str, Any], response: dict[str, Any]) -> None:
        """In the name of the person who has answered."""
        from spark_jobs.lake.checkpoints import halts
        from spark_jobs.operations.resume.execute import carry_out as decide
        from spark_jobs.operations.resume.plan import ResumePlan

        params, lake, answer = get_current_context()["params"], this_lake(), answer_of(response)
        with reporting_errors():
            halt = halts.Halt.model_validate(found)
            name, comment = halt.pipeline, params["comment"]
            if not answer.approved:
                halts.reject(lake, name, by=answer.by, comment=comment, expected=halt)
                log(f"Rejected by {answer.by}: {name} stays halted at {halt.subject}.")
                return
            plan = ResumePlan(pipeline=name, halt=halt, choice=params["choice"])
            timeout = timedelta(minutes=params["wait_minutes"])
            decide(lake, plan, log, by=answer.by, comment=comment, timeout=timeout)

    found = find_halt()
    asked = approval(
        subject="{{ params.choice }} {{ params.pipeline }}?",
        body=(
            "{% set halt = ti.xcom_pull(task_ids='find_halt') %}"
            "**{{ params.pipeline }}** is halted at batch {{ halt['batch_id'] }} of epoch {{ halt['epoch'] }}, which "
            "{% if halt['failed'] %}cannot be computed: `{{ halt['failed'] }}`{% else %}breaks:{% endif %}\n\n"
            "{% for rule, count in halt['broken'].items() %}- `{{ rule }}`: {{ count }} rows\n{% endfor %}"
            "{% for sample in halt['samples'] %}- such as: {{ sample }}\n{% endfor %}\n"
            "Proposed: **{{ params.choice }}**, for this batch only: "
            "{{ {'resume': 'it is tried again', 'quarantine': 'the rows that break the rule are set aside', "
            "'skip': 'all of its rows are set aside'}[params.choice] }}. {{ params.comment }}"
        ),
    )
    found >> asked
    carry_out(found, asked.output)  # type: ignore[arg-type]  # tasks give references to their results


resume_halted()
