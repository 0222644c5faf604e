"""Keep tables small and quick, every day."""

from datetime import UTC, datetime

from airflow.sdk import CronTriggerTimetable, dag, task
from tidemark_dags.batch import Maintain
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
Keeps the tables of the lake small and quick. Once a day it compacts small data files, keeps what commits have said in
`ops.ledger`, cuts the logs of tables, and removes data files that no version names any more. The streams continue
meanwhile. No row of a result changes.

- **`find`** lists the tables of the lake.
- **`maintain`** runs once for each of them. Its log has the figures: files before and after, commits kept, what was
  removed, and which pipeline still needs old versions.
- **`remove_task_logs`** removes logs of Airflow's own tasks that are older than 30 days (`TIDEMARK_KEEP_AIRFLOW_LOGS`).

**How much is kept** is set by `TIDEMARK_KEEP_VERSIONS` (7 days) and the like: docs/operate/maintenance.md.

**When it is red** the last line of the log of that task says what is wrong, and what to do. The other tables are not
affected.

From a terminal: `tidemark maintain`, and `tidemark maintain --dry-run` to look first.
"""


@dag(
    dag_display_name="Maintain tables",
    description="Keep tables small and quick, every day.",
    doc_md=DOC,
    schedule=CronTriggerTimetable("0 3 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["tidemark", "maintenance"],
    default_args={"retries": 0},
)
def maintain_tables() -> None:
    """Finds the tables, then maintains each; beside them Airflow's own logs."""

    @task(show_return_value_in_logs=False)
    def find() -> list[str]:
        """The tables of the lake; `ops.ledger` last, to which all others add."""
        from spark_jobs.lake.accounting.ledger_table import TABLE
        from spark_jobs.lake.tables.opening import table_names

        with reporting_errors():
            tables = sorted(table_names(this_lake()), key=lambda name: name == TABLE)
        log(", ".join(tables) if tables else "There is no table on this lake yet.")
        return tables

    @task(show_return_value_in_logs=False)
    def remove_task_logs() -> int:
        """Removes logs of tasks that are older than what is kept."""
        from tidemark_dags.task_logs import remove_old

        return remove_old()

    Maintain.partial(task_id="maintain", map_index_template="{{ task.table }}", max_active_tis_per_dagrun=1).expand(
        table=find()
    )
    remove_task_logs()


maintain_tables()
