"""Replay a quarantine: what would be read again is reported, a person approves it, then it is done."""

from datetime import UTC, datetime

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.approvals import Question, approval
from tidemark_dags.assets import MOVED
from tidemark_dags.batch import POOL, Replay
from tidemark_dags.forms import left_out, registered_field
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Takes rows out of a quarantine that pass by now, each once. **The streams continue meanwhile.**

- **Of an ingest**, after a rule was fixed: rows are read again. Those that pass go to bronze; the others stay. The
  pipelines read them as they read any new row: what is late by now goes to their late tables.
- **Of a pipeline with `Enrich(missing="quarantine")`**, after the table got the keys: events are looked up again, in
  the version that the newest batch has taken. Those that are found are counted in the results; the others stay.
- **Of a batch that was skipped** ([Resume halted](/dags/resume_halted)), reason `skipped`: its events are counted, once
  nothing fails at them any more. If one still fails, `replay` is red, and nothing is written.

**The form**
- *Pipeline*: the ingest, or the pipeline.
- *Reasons*: only rows with one of these; empty: all that can be read again.
- *Since*, *Until*: when they arrived. Without *Until*: up to now.
- *Comment*: why; kept in `ops.decisions`.
- *Dry run*: only report what would be read.

**What happens**
- `report`: its log has the rows by reason, and those that cannot be read again, with why. If there is nothing to read,
  or with *Dry run*, the run ends here.
- `approval` waits for a person: open this run, *Required Actions*, **Approve** or **Reject**. After 12 hours without an
  answer it is red, and nothing is done.
- `replay` does it in the name of **whoever has answered**; its log has what became of the rows. After a rejection it
  records that, and ends as *skipped*.

**When `replay` is red** the last line of its log says what is wrong, and what to do. A replay that was interrupted is
carried out to its end by the next one; no row comes twice. On a terminal: `tidemark replay NAME`.
"""


@dag(
    dag_display_name="Replay quarantine",
    description="Take rows out of a quarantine that pass by now, with an approval.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipeline": registered_field(description="The one whose quarantine it is."),
        "reasons": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Reasons",
            description="Such as between(units, 1..) or skipped, one a line; empty: all.",
        ),
        "since": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Since",
            description="Only rows that arrived then or later.",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Until",
            description="Only rows that arrived before.",
        ),
        "comment": Param("", type="string", title="Comment", description="Why; kept in ops.decisions."),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Only report what would be read."),
    },
)
def replay_quarantine() -> None:
    """Report, ask a person, carry out what was decided."""

    @task.short_circuit(show_return_value_in_logs=False)
    def report() -> Question:
        """What would be read, by reason; nothing, which skips the rest, where there is nothing to decide."""
        from spark_jobs.operations.replay.asking import asked_for, look

        params = get_current_context()["params"]
        # What is set aside after this report is not what the person approves.
        until = params["until"] or datetime.now(UTC).isoformat()
        with reporting_errors():
            scope = look(this_lake(), params["pipeline"], asked_for(params["reasons"], params["since"], until))
        log("\n".join(scope.lines))
        if params["dry_run"] or not scope.rows:
            log("Nothing was written: dry run." if params["dry_run"] else "There is nothing to replay.")
            return Question()
        return Question(rows=scope.rows, reasons=dict(scope.reasons), until=until)

    reported = report()
    asked = approval(
        subject="Replay the quarantine of {{ params.pipeline }}?",
        body=(
            "{% set found = ti.xcom_pull(task_ids='report') %}"
            "{{ found['rows'] }} rows of the quarantine of **{{ params.pipeline }}** are read again, by its rules, or "
            "by the table that it looks up, as they are now:\n\n"
            "{% for reason, rows in found['reasons'].items() %}- `{{ reason }}`: {{ rows }} rows\n{% endfor %}\n"
            "{{ params.comment }}"
        ),
    )
    reported >> asked >> Replay(task_id="replay", pipeline="{{ params.pipeline }}", pool=POOL, outlets=[MOVED])


replay_quarantine()
