"""Manage alerts: mute pipelines for a while, alert again, acknowledge restarts."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag, get_current_context, task
from tidemark_dags.forms import left_out, pipelines_field
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
What becomes of the alerts of deployed pipelines. Streams are not touched.

**The form**
- *Pipelines*: deployed ones.
- *Action*:
  - `mute`: their alerts fail no task and notify nobody, for so many *Hours*. They are still recorded in `ops.alerts`.
  - `unmute`: alert again.
  - `acknowledge`: restarts up to now are known; the alert `restarts` clears with the next look.

[Monitor streams](/dags/monitor_streams) shows what there is. On a terminal: `tidemark mute NAME --for "2 hours"`,
`tidemark mute NAME --off`, `tidemark acknowledge NAME`.
"""


@dag(
    dag_display_name="Manage alerts",
    description="Mute pipelines for a while, alert again, acknowledge restarts.",
    doc_md=DOC + left_out(),
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "streams"],
    default_args={"retries": 0},
    params={
        "pipelines": pipelines_field(description="Whose alerts.", only_registered=False),
        "action": Param("mute", type="string", enum=["mute", "unmute", "acknowledge"], title="Action"),
        "hours": Param(1, type="number", exclusiveMinimum=0, title="Hours", description="mute: for how long."),
    },
)
def manage_alerts() -> None:
    """One task, at once."""

    @task(show_return_value_in_logs=False)
    def carry_out() -> None:
        """Refuses what was never deployed."""
        from spark_jobs.control.monitoring.asking import acknowledge, mute

        params, lake = get_current_context()["params"], this_lake()
        names, now = params["pipelines"], datetime.now(UTC)
        with reporting_errors():
            if params["action"] == "acknowledge":
                log(acknowledge(lake, names, at=now))
            else:
                until = now + timedelta(hours=params["hours"]) if params["action"] == "mute" else None
                log(mute(lake, names, until=until))

    carry_out()


manage_alerts()
