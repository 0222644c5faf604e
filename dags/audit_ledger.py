"""Check every ingest, and recount every pipeline from bronze, every day."""

from datetime import UTC, datetime

from airflow.sdk import CronTriggerTimetable, Param, dag, task
from tidemark_dags.batch import POOL, Audit, ran
from tidemark_dags.forms import left_out
from tidemark_dags.tasks import log, reporting_errors, this_lake

DAYS = 14
"""Late events usually take less; maintenance keeps the versions that events were looked up in for longer."""

DOC = """
Proves that nothing is missing. Once a day it checks the ledger of each ingest and pipeline against its tables, looks
for data files that a table's log names and the store does not have, and computes the closed results of the last
{days} days again from bronze. Nothing is written. The form takes another number of days, or none for all of them.

- **`find`** lists the ingests and pipelines that have run on this lake.
- **`audit`** runs once for each of them. Its log has the equations with their figures, and how many rows were
  recounted.

**When it is red** the log of that task names each wrong row by window and key: missing, there twice, with other values,
or not given by any event. If rows are missing or have wrong values, its last line ends with the command that fixes
them. It is also red where rows can no longer be recounted, because events were deleted. A missing file or an unbalanced
ledger needs a person: docs/guides/audit.md, docs/operate/runbook.md.

**When it stays queued**, another backfill, repair, replay, audit or check holds the one slot of the pool `{pool}`
(Admin → Pools).

From a terminal: `tidemark audit`.
"""


@dag(
    dag_display_name="Audit",
    description="Check every ingest, and recount every pipeline from bronze, every day.",
    doc_md=DOC.format(pool=POOL, days=DAYS) + left_out(),
    schedule=CronTriggerTimetable("30 2 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["tidemark", "audit"],
    default_args={"retries": 0},
    params={
        "days": Param(
            DAYS,
            description_md="Recount the results of so many days up to the newest that is closed; empty: all there are.",
            type=["null", "integer"],
            title="Days",
            minimum=1,
            maximum=36_500,
        )
    },
)
def audit_ledger() -> None:
    """Finds the pipelines, then audits each."""

    @task(show_return_value_in_logs=False)
    def find() -> list[str]:
        """Those that have run."""
        with reporting_errors():
            found = ran(this_lake(), lambda _: True)
        log(", ".join(found) if found else "No pipeline has run on this lake yet.")
        return found

    Audit.partial(task_id="audit", pool=POOL, map_index_template="{{ task.pipeline }}").expand(pipeline=find())


audit_ledger()
