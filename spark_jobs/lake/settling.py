"""Late events that a repair or a backfill has counted after all: which are still to be, and which have been."""

from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from spark_jobs.lake.durable import force_commit
from spark_jobs.lake.errors import ConflictError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.revisions import newest_writer
from spark_jobs.lake.tables import again_at_conflicts, open_table

IDENTITY = ("_epoch", "_batch_id", "_event_id", "_ingest_seq")
"""Tells late events apart."""


@dataclass(frozen=True)
class LateEvents:
    """Events in one version of a table of late events.

    Attributes:
        version: of the table.
        events: one row for each: `_epoch`, `_batch_id`, `_event_id`, `_ingest_seq`, `first_us` and `last_us` (where the
            first and the last of the windows that it missed start; without windows the first and the last instant at
            which it can change rows), `settled`.
    """

    version: int
    events: pa.Table

    @property
    def unsettled(self) -> pa.Table:
        """Those that nothing has counted yet."""
        return self.events.filter(pa.compute.invert(self.events["settled"]))

    def within(self, begin_us: int, end_us: int) -> pa.Table:
        """Those that missed a window which starts in a range."""
        first, last = self.events["first_us"], self.events["last_us"]
        compute = pa.compute
        return self.events.filter(compute.and_(compute.less(first, end_us), compute.greater_equal(last, begin_us)))


def late_events(
    lake: Lake,
    table: str,
    epoch: int,
    *,
    time: str,
    touches_us: int = 0,
    in_windows: bool,
    version: int | None = None,
) -> LateEvents:
    """The events of a table of late events.

    Args:
        lake: where.
        table: such as `gold.top_products__late`.
        epoch: of the checkpoint.
        time: the event's own time; SQL of DuckDB.
        touches_us: how far from it the rows lie that it can change, in microseconds.
        in_windows: whether the events missed windows.
        version: of the table; None: the newest.
    """
    opened = open_table(lake, table, version=version)
    starts = "list_transform(missed_windows, lambda w: epoch_us(w.window_start))"
    first, last = f"epoch_us({time}) - {touches_us}", f"epoch_us({time}) + {touches_us}"
    if in_windows:
        first, last = f"list_min({starts})", f"list_max({starts})"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("late", opened.to_pyarrow_dataset())
        found = connection.sql(
            f"SELECT {', '.join(IDENTITY)}, {first} AS first_us, {last} AS last_us, "
            f"settled_version IS NOT NULL AS settled FROM late WHERE _epoch = {epoch}"
        ).to_arrow_table()
    return LateEvents(opened.version(), found)


def settle(lake: Lake, table: str, events: pa.Table, version: int | None) -> None:
    """Marks events as counted in a version of the result, or as not counted any more.

    Args:
        lake: where.
        table: of late events.
        events: as `LateEvents.events` has them.
        version: of the result; None: nothing counts them any more.

    Raises:
        ConflictError: if another writer was faster each time.
    """
    if not events.num_rows:
        return
    try:
        _mark(lake, table, events, version)
    except CommitFailedError as error:
        raise ConflictError(
            f"table {table}: another writer changed the same files at the same moments, again and again. Its newest "
            f"commit is by {newest_writer(lake, table)}. {events.num_rows:,} late events of it are not marked yet. "
            "Run the same command again."
        ) from error


@again_at_conflicts
def _mark(lake: Lake, table: str, events: pa.Table, version: int | None) -> None:
    opened = open_table(lake, table)
    count, now = events.num_rows, datetime.now(UTC) if version is not None else None
    marks = events.select(list(IDENTITY)).append_column("settled_version", pa.array([version] * count, pa.int64()))
    marks = marks.append_column("settled_at", pa.array([now] * count, pa.timestamp("us", tz="UTC")))
    (
        opened.merge(
            marks,
            " AND ".join(f"t.{name} = s.{name}" for name in IDENTITY),
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        .when_matched_update({"settled_version": "s.settled_version", "settled_at": "s.settled_at"})
        .execute()
    )
    opened.update_incremental()
    force_commit(lake, table, opened.version())


def those_of(events: pa.Table, wanted: pa.Table) -> pa.Table:
    """Those of the events that another table names by their identity."""
    return events.join(wanted, list(IDENTITY), join_type="left semi")
