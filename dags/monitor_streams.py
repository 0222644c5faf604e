"""Watch the streams: look at all pipelines, report each, notify of alerts, emit asset events."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import CronTriggerTimetable, dag, get_current_context, task
from tidemark_dags.assets import MOVED, table_asset
from tidemark_dags.notifiers import notify_lake_back, notify_lake_unreachable, notify_of
from tidemark_dags.tasks import fail, log, reporting_errors, this_lake

if TYPE_CHECKING:
    from spark_jobs.control.monitoring.monitor import Report

DOC = """
Looks at every deployed pipeline once a minute, without Spark.

- **`look`** reads the drivers' signs of life and the tables' logs, writes `ops/alerts`, calls the notifiers once when a
  alert begins and once when it clears, and emits an asset event for each table that has a new version.
  Red: the lake is gone, or cannot be read and written; that is reported in the same way, and nothing else can be said
  meanwhile.
- **`report`** runs once for each pipeline. Red: a limit of that pipeline is exceeded; its log says what is wrong, since
  when, the figures, and what to do. A muted alert is shown there, and is not red.

The limits are `alerts=Alerts(...)` of each pipeline. Who is notified, besides this page: the Airflow variable
`tidemark_notifiers` (see `docs/operate/operating.md`). A rule in Prometheus reports whether *this* monitor has stopped.
"""


@dag(
    dag_display_name="Monitor streams",
    description="The health of every deployed pipeline, each minute.",
    doc_md=DOC,
    schedule=CronTriggerTimetable("* * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A run that hangs ends before many minutes are missed; none waits behind it.
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=5),
    tags=["tidemark", "streams"],
    default_args={"retries": 0, "execution_timeout": timedelta(minutes=2)},
)
def monitor_streams() -> None:
    """One look, then a report for each pipeline."""

    # Airflow or the lake may be unreachable for a moment, and a look that did not take place is no alert.
    @task(outlets=[MOVED], retries=1, retry_delay=timedelta(seconds=5), show_return_value_in_logs=False)
    def look(*, outlet_events: Any = None) -> list[dict[str, Any]]:
        """Looks at all pipelines in one process."""
        from spark_jobs.control.monitoring import monitor
        from spark_jobs.lake.errors import LakeUnavailableError

        context, now = get_current_context(), datetime.now(UTC)
        with reporting_errors():
            lake = this_lake()
            try:
                observation = monitor.look(lake, now=now)
            except LakeUnavailableError as error:
                if context["ti"].try_number > context["ti"].max_tries:
                    notify_lake_unreachable(lake.uri, str(error), now, context)
                raise
        for move in observation.moves:
            extra = {"version": move.version, "rows": move.rows, "watermark": _as_text(move.watermark)}
            outlet_events[MOVED].add(table_asset(move.table), extra=extra)
        if not observation.reports:
            log("Nothing is deployed. Deploy something: Deploy streams, Trigger.")
        for each in observation.reports:
            log(f"{_state(each):<8} {each.pipeline}: {each.summary}")
        for move in observation.moves:
            log(f"new version  {move.table}: {move.version}, {move.rows:,} rows")
        notify_lake_back(lake.uri, now, context)
        with reporting_errors():
            notify_of(lake, observation, context)
        return [each.model_dump(mode="json") for each in observation.reports]

    @task(map_index_template="{{ task.op_kwargs['report']['pipeline'] }}", show_return_value_in_logs=False)
    def report(report: dict[str, Any]) -> None:
        """Red where a limit of this pipeline is exceeded."""
        log(report["summary"])
        breaches = "\n\n".join(report["breaches"])
        if report["healthy"] or not breaches:
            return
        if report["muted"]:
            log(f"muted:\n{breaches}")
            return
        raise fail(breaches)

    report.expand(report=look())


def _state(report: "Report") -> str:
    if report.healthy:
        return "ok"
    return "muted" if report.muted else "ALERT"


def _as_text(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant else None


monitor_streams()
