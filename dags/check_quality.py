"""Check what tables gained against their expectations, every hour: a task for each table."""

from datetime import UTC, datetime

from airflow.sdk import CronTriggerTimetable, dag, task
from tidemark_dags.batch import POOL, Check, ran
from tidemark_dags.forms import left_out
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Looks at the data itself. Once an hour it checks what each table gained since the check before against the expectations
of its pipeline, and writes what it found to the table `ops.quality` and to a report. Results are not changed.

- **`find`** lists the pipelines that have expectations and have run on this lake.
- **`check`** runs once for each of them. Its log has a line for each expectation, some of the rows that break it, and
  the address of the report, which *Browse → Tables* has, too.

**When it is red** the log of that task ends with what is broken. Expectations of severity `warn` are shown, and leave
it green. The next check looks at newer rows: a table that is right again turns green by itself.

**When it stays queued**, another backfill, repair, replay, audit or check holds the one slot of the pool `{pool}`
(Admin → Pools).

From a terminal: `tidemark check`.
"""


@dag(
    dag_display_name="Check quality",
    description="Check what tables gained against their expectations, every hour.",
    doc_md=DOC.format(pool=POOL) + left_out(),
    schedule=CronTriggerTimetable("15 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["tidemark", "quality"],
    default_args={"retries": 0},
)
def check_quality() -> None:
    """Finds the pipelines, then checks the table of each."""

    @task(show_return_value_in_logs=False)
    def find() -> list[str]:
        """Those that have expectations and have run."""
        with reporting_errors():
            found = ran(this_lake(), lambda each: each.is_checked)
        log(", ".join(found) if found else "No pipeline with expectations has run on this lake yet.")
        return found

    Check.partial(task_id="check", pool=POOL, map_index_template="{{ task.pipeline }}").expand(pipeline=find())


check_quality()
