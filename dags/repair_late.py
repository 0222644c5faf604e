"""Count late events after all, every hour: a task for each pipeline that keeps them."""

from datetime import UTC, datetime

from airflow.sdk import CronTriggerTimetable, dag, task
from tidemark_dags.assets import MOVED
from tidemark_dags.batch import POOL, Repair, is_repairable, ran
from tidemark_dags.forms import left_out
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Counts late events after all. Once an hour it computes again the results that open late events can change, from bronze
and by the same steps as the stream, and marks these events as repaired. The streams continue meanwhile.

- **`find`** lists the pipelines that keep late events and have run on this lake.
- **`repair`** runs once for each of them. If no late event is open, it ends after a few seconds without a JVM.
  Otherwise its log has the rows added, revised and deleted, and the late events that are counted now. If rows changed,
  an asset event of the table was emitted.

**When it is red** the last line of the log of that task says what is wrong, and what to do. The other tasks are not
affected. What is left open is tried again in the next hour.

**When it stays queued**, another backfill, repair, replay, audit or check holds the one slot of the pool `{pool}`,
or that pool is missing (Admin → Pools;
`airflow pools set {pool} 1 "backfills and repairs"`).

A whole range, also without late events: the DAGs *Backfill …*. From a terminal: `tidemark repair`.
"""


@dag(
    dag_display_name="Repair late events",
    description="Count late events after all, every hour.",
    doc_md=DOC.format(pool=POOL) + left_out(),
    schedule=CronTriggerTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["tidemark", "backfill"],
    default_args={"retries": 0},
)
def repair_late() -> None:
    """Finds the pipelines, then repairs each."""

    @task(show_return_value_in_logs=False)
    def find() -> list[str]:
        """Those that keep late events and have run."""
        with reporting_errors():
            found = ran(this_lake(), is_repairable)
        log(", ".join(found) if found else "No pipeline that keeps late events has run on this lake yet.")
        return found

    Repair.partial(task_id="repair", pool=POOL, outlets=[MOVED], map_index_template="{{ task.pipeline }}").expand(
        pipeline=find()
    )


repair_late()
