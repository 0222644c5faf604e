"""Compute results of a range of event time again: a DAG for each pipeline of which that can be done."""

from datetime import UTC, datetime

from airflow.sdk import CronDataIntervalTimetable, Param, dag
from tidemark_dags.assets import MOVED
from tidemark_dags.batch import POOL, Backfill, backfillable, modes
from tidemark_dags.forms import left_out

DOC = """
Computes the results of `{pipeline}` in a range of event time again, from bronze and by the same steps as the stream,
compares them with `{table}`, and corrects in it what differs{late}.
**Only results that the stream has closed are touched, and it continues meanwhile. Running it again changes nothing.**

{daily}

**The form**
- *From*, *To*: the range of event time; *To* is left out of it. Required for a run by hand.
- *Mode*: {modes}
- *Dry run*: only show the plan in the log. It starts no JVM, and writes nothing.
- *Strict*: fail if results of the range are still open, instead of leaving them out.
- *Force*: compute also where nothing seems to have changed, or where another program has changed rows of the table.

**When it is red** the last line of the log of `backfill` says what is wrong, and what to do. What was committed before
stays; start it again with the same range. **When it is green** the log has the rows added, revised and deleted, and the
late events that are counted now. If rows changed, an asset event of `{table}` was emitted.

**When it stays queued**, another backfill, repair, replay, audit or check holds the one slot of the pool `{pool}`,
or that pool is missing (Admin → Pools; `airflow pools set {pool} 1 "backfills and repairs"`).

{repairs}From a terminal: `tidemark backfill`.
"""

COUNTS_LATE = {
    "late": ", late events included",
    "daily": "Each day it computes the day before. Where the pipeline has not run, or has begun after that day, it "
    "ends as *skipped*.",
    "modes": "`corrected` counts late events too. `as-streamed` gives back the rows that the stream wrote, without "
    "them.",
    "repairs": "Late events alone: [Repair late events](/dags/repair_late) does it every hour. ",
}
COUNTS_NONE = {
    "late": "",
    "daily": "Late events cannot be counted in these results after all, so that it has no schedule: start it where "
    "rows were changed.",
    "modes": "`as-streamed` gives back the rows that the stream wrote.",
    "repairs": "",
}
"""What its page says of a pipeline whose late events can be counted after all, and of another one."""


def declare(pipeline: str, table: str) -> None:
    """Declares the DAG of a pipeline.

    Args:
        pipeline: its registered name.
        table: its result.
    """
    usual, *others = modes(pipeline)
    counts_late = usual == "corrected"
    said = COUNTS_LATE if counts_late else COUNTS_NONE

    @dag(
        dag_id=f"backfill_{pipeline}",
        dag_display_name=f"Backfill {pipeline}",
        description=f"Compute results of {table} again.",
        doc_md=DOC.format(pipeline=pipeline, table=table, pool=POOL, **said) + left_out(),
        schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC") if counts_late else None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # Runs of a paused DAG would stay queued.
        is_paused_upon_creation=False,
        tags=["tidemark", "backfill"],
        default_args={"retries": 0},
        params={
            "from": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="From",
                description="Begin of the range of event time.",
            ),
            "to": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="To",
                description="End of the range (exclusive).",
            ),
            "mode": Param(
                usual,
                enum=[usual, *others],
                title="Mode",
                description="Late events included, or the rows as the stream wrote them.",
            ),
            "dry_run": Param(False, type="boolean", title="Dry run", description="Show the plan, write nothing."),
            "strict": Param(False, type="boolean", title="Strict", description="Fail if results are still open."),
            "force": Param(
                False,
                type="boolean",
                title="Force",
                description="Also where nothing seems to have changed, or another program has changed rows.",
            ),
        },
    )
    def backfill() -> None:
        Backfill(task_id="backfill", pipeline=pipeline, pool=POOL, outlets=[MOVED])

    backfill()


for _pipeline, _table in backfillable().items():
    declare(_pipeline, _table)
