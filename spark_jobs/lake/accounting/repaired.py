"""Events beside a result that a repair or a backfill counts after all: which are still to be, and which have been.

They are late, or a replay has looked them up again (docs/decisions/0025).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from spark_jobs.lake.checkpoints.lineage import Lineage
from spark_jobs.lake.commit_records.conflicts import cannot_commit, is_of_others
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.revisions import newest_writer
from spark_jobs.lake.errors import ConflictError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import COMPRESSED
from spark_jobs.lake.tables.opening import again_at_conflicts, open_table
from spark_jobs.plan.columns import INGEST_TIME
from spark_jobs.plan.identity import IDENTITY, MAY_BE_NULL, as_in
from spark_jobs.spec.names import first_of, in_delta, in_duckdb

_INSTANT = pa.timestamp("us", tz="UTC")

Precondition = Callable[[DeltaTable], list[Transaction]]
"""What a commit carries so that it is made only while something holds; of the table as it is found, or an error."""


@dataclass(frozen=True)
class LateEvents:
    """Events that their batches have not counted: in one version of a table of late events, and of a quarantine.

    Attributes:
        version: of the table of late events; None: there is none.
        quarantine_version: likewise.
        events: one row for each: `IDENTITY`, `_ingest_time`, `first_us` and `last_us` (where the first and the last of
            the windows that it missed start; without windows the first and the last instant at which it can change
            rows), `replayed_batch` (null: it is late) and `repaired`.
    """

    version: int | None
    quarantine_version: int | None
    events: pa.Table

    @property
    def replayed(self) -> pa.Table:
        """Those that a replay has looked up again."""
        return self.events.filter(pa.compute.is_valid(self.events["replayed_batch"]))

    @property
    def unrepaired(self) -> pa.Table:
        """Those that nothing has counted yet."""
        return self.events.filter(pa.compute.invert(self.events["repaired"]))

    def within(self, begin_us: int, end_us: int) -> pa.Table:
        """Those that missed a window which starts in a range."""
        first, last = self.events["first_us"], self.events["last_us"]
        compute = pa.compute
        return self.events.filter(compute.and_(compute.less(first, end_us), compute.greater_equal(last, begin_us)))


def late_rows(
    lake: Lake,
    table: str,
    epochs: Lineage,
    *,
    times: Sequence[str],
    touches_us: int = 0,
    in_windows: bool,
    version: int | None = None,
    last_batch: int | None = None,
) -> tuple[int, pa.Table]:
    """The version of a table of late events, and its events as `LateEvents.events` has them.

    Args:
        lake: where.
        table: such as `gold.top_products__late`.
        epochs: whose events count.
        times: columns of which the first with a value is the event's own time.
        touches_us: how far from it the rows lie that it can change, in microseconds.
        in_windows: whether the events missed windows.
        version: of the table; None: the newest.
        last_batch: only events of batches up to this one; None: all.
    """
    starts = "list_transform(missed_windows, lambda __window: epoch_us(__window.window_start))"
    time = first_of(times, in_duckdb)
    first, last = f"epoch_us({time}) - {touches_us}", f"epoch_us({time}) + {touches_us}"
    if in_windows:
        first, last = f"list_min({starts})", f"list_max({starts})"
    upto = f" AND _batch_id <= {last_batch}" if last_batch is not None else ""
    return _rows(lake, table, version, first, last, "NULL::BIGINT", f"{epochs.rows}{upto}")


def replayed_rows(lake: Lake, table: str, epochs: Lineage, *, version: int | None = None) -> tuple[int, pa.Table]:
    """The same of the events in a quarantine that a replay has looked up again.

    Args:
        lake: where.
        table: such as `gold.valid_orders__quarantine`.
        epochs: whose events count.
        version: of the table; None: the newest.
    """
    if "replayed_batch" not in {field.name for field in open_table(lake, table, version=version).schema().fields}:
        # It was made before there were replays, and its pipeline has not been started since.
        version, found = _rows(
            lake, table, version, "0::BIGINT", "0::BIGINT", "NULL::BIGINT", "false", repaired="false"
        )
        return version, found
    first, last = "epoch_us(changes_from)", "epoch_us(changes_upto)"
    where = f"{epochs.rows} AND replayed_batch IS NOT NULL"
    return _rows(lake, table, version, first, last, "replayed_batch", where)


def _rows(
    lake: Lake,
    table: str,
    version: int | None,
    first: str,
    last: str,
    replayed_batch: str,
    where: str,
    *,
    repaired: str = "settled_version IS NOT NULL",
) -> tuple[int, pa.Table]:
    opened = open_table(lake, table, version=version)
    event = as_in({field.name for field in opened.schema().fields}, (*IDENTITY, INGEST_TIME))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("aside", opened.to_pyarrow_dataset())
        found = connection.sql(
            f"SELECT {', '.join(event)}, {first} AS first_us, {last} AS last_us, "
            f"{replayed_batch} AS replayed_batch, {repaired} AS repaired FROM aside WHERE {where}"
        ).to_arrow_table()
    return opened.version(), found


def mark_repaired(
    lake: Lake, table: str, events: pa.Table, version: int | None, *, held: Precondition | None = None
) -> None:
    """Marks events as counted in a version of the result, or as not counted any more.

    Args:
        lake: where.
        table: of late events, or a quarantine.
        events: those of it, as `LateEvents.events` has them.
        version: of the result; None: nothing counts them any more.
        held: as `Basis.marking`; None: nothing has to hold.

    Raises:
        OutdatedPlanError: by `held`, if they are not counted any more.
        ConflictError: if another writer was faster each time.
    """
    count, now = events.num_rows, datetime.now(UTC) if version is not None else None
    marks = events.select(list(IDENTITY)).append_column("settled_version", pa.array([version] * count, pa.int64()))
    marks = marks.append_column("settled_at", pa.array([now] * count, _INSTANT))
    _mark(lake, table, marks, held=held, undone=f"{count:,} late events of it are not marked yet")


def mark_replayed(lake: Lake, table: str, marks: pa.Table) -> int:
    """Marks events of a quarantine as looked up again; how many were not yet.

    Args:
        lake: where.
        table: the quarantine.
        marks: `IDENTITY`, `replayed_batch`, `changes_from`, `changes_upto` and `settled_version` of each event; that
            of one that changes nothing is set.

    Raises:
        ConflictError: if another writer was faster each time.
    """
    now, repaired = pa.scalar(datetime.now(UTC), _INSTANT), pc.is_valid(marks["settled_version"])
    marks = marks.append_column("replayed_at", pa.repeat(now, marks.num_rows))
    marks = marks.append_column("settled_at", pc.if_else(repaired, now, pa.scalar(None, _INSTANT)))
    return _mark(lake, table, marks, where="t.replayed_batch IS NULL", undone="Nothing was replayed")


def _mark(
    lake: Lake, table: str, marks: pa.Table, *, where: str | None = None, held: Precondition | None = None, undone: str
) -> int:
    """Sets all columns of `marks` in the events that it names; in how many.

    Args:
        lake: where.
        table: of late events, or a quarantine.
        marks: `IDENTITY` of each event, and what is to be set.
        where: of which events only.
        held: as `mark_repaired`.
        undone: what a conflict leaves undone.
    """
    if not marks.num_rows:
        return 0
    try:
        return _update(lake, table, marks, where, held)
    except CommitFailedError as error:
        if not is_of_others(error):
            raise cannot_commit(table, error, f"{undone}.") from error
        raise ConflictError(
            f"table {table}: another writer changed the same files at the same moments, again and again. Its newest "
            f"commit is by {newest_writer(lake, table)}. {undone}. Run the same command again."
        ) from error


@again_at_conflicts
def _update(lake: Lake, table: str, marks: pa.Table, where: str | None, held: Precondition | None) -> int:
    opened = open_table(lake, table, to_write=True)
    present = {field.name for field in opened.schema().fields}
    known, given = [name for name in IDENTITY if name in present], marks.column_names
    figures = (
        opened.merge(
            _each_once(marks, known),
            " AND ".join(f"(t.{in_delta(name)} {_equal(name)} s.{in_delta(name)})" for name in known),
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=held(opened) if held is not None else None
            ),
            writer_properties=COMPRESSED,
        )
        .when_matched_update(
            {in_delta(name): f"s.{in_delta(name)}" for name in given if name not in IDENTITY},
            predicate=where,
        )
        .execute()
    )
    opened.update_incremental()
    force_commit(lake, table, opened.version())
    return int(figures["num_target_rows_updated"])


def _equal(name: str) -> str:
    # An equality finds the rows, which the other comparison cannot.
    return "IS NOT DISTINCT FROM" if name in MAY_BE_NULL else "="


def _each_once(marks: pa.Table, known: Sequence[str]) -> pa.Table:
    """The first of the marks that a table cannot tell apart, whose rows name no source table: they are marked together.

    A merge refuses two marks for one row.
    """
    groups = marks.select(known).append_column("__row", pa.array(range(marks.num_rows), pa.int64())).group_by(known)
    return marks.take(groups.aggregate([("__row", "min")])["__row_min"])


def those_of(events: pa.Table, wanted: pa.Table) -> pa.Table:
    """Those of the events that another table names by their identity."""
    numbered = _without_nulls(events).append_column("__row", pa.array(range(events.num_rows), pa.int64()))
    found = numbered.join(_without_nulls(wanted), list(IDENTITY), join_type="left semi")
    return events.take(found["__row"])


def _without_nulls(events: pa.Table) -> pa.Table:
    """The identities; a join takes no null for equal to another."""
    filled = {name: pc.fill_null(events[name], "") if name in MAY_BE_NULL else events[name] for name in IDENTITY}
    return pa.table(filled)
