"""Whether the books of a pipeline balance, from the lake alone."""

from dataclasses import dataclass

import duckdb

from spark_jobs.lake.checkpoints import Epoch, current_epoch, starts_of
from spark_jobs.lake.errors import LakeUnavailableError, first_line
from spark_jobs.lake.files import reading
from spark_jobs.lake.history import commit_at, latest_version
from spark_jobs.lake.ledger import FATES, LedgerRow, Totals, discrepancies
from spark_jobs.lake.location import Lake
from spark_jobs.lake.offsets import SourceEmptiedError, read_by_batch
from spark_jobs.lake.stamps import decode
from spark_jobs.lake.tables import open_table
from spark_jobs.spec import Definition, Ingest, Late, Pipeline


def checks(lake: Lake, definition: Definition, epoch: int, rows: list[tuple[int, LedgerRow]]) -> list[tuple[bool, str]]:
    """Holds the ledger of one epoch against itself and against the tables.

    Returns:
        Whether each equation holds, and the equation in words with its figures.
    """
    totals = Totals.of(row for _, row in rows)
    fates = {fate: getattr(totals, fate) for fate in FATES}
    shown = (f"{fate.replace('_', ' ')} {count:,}" for fate, count in fates.items() if count or fate != "timeless")
    results = [(sum(fates.values()) == totals.read, f"events: read {totals.read:,} = {' + '.join(shown)}")]
    windowed = isinstance(definition, Pipeline) and definition.aggregate.window is not None
    results += [(False, problem) for problem in discrepancies(rows, windowed=windowed)]
    current = current_epoch(lake, definition.name)
    if current is None or current.number != epoch:
        # The tables have moved on since: only the ledger's own equations can be held against each other.
        return results
    books = _Books(lake, definition.name, epoch, rows[-1][0] if rows else -1, all_rows=current.tables_emptied)
    if isinstance(definition, Pipeline):
        results += _source_check(lake, definition, current, rows, totals)
        results += _pipeline_checks(books, definition, totals)
    else:
        results += _ingest_checks(books, definition, totals)
    return results


def _source_check(
    lake: Lake, definition: Pipeline, epoch: Epoch, rows: list[tuple[int, LedgerRow]], totals: Totals
) -> list[tuple[bool, str]]:
    """What the batches have read, held against the logs of the source tables between the first offset and the last."""
    starts = starts_of(lake, epoch)
    if starts is None or not rows:
        return []
    names = ", ".join(table.name for table in definition.tables)
    try:
        held = read_by_batch(lake, definition, starts, {}, rows[-1][1].sources).rows
    except SourceEmptiedError as error:
        return [(False, str(error))]
    if held is None:
        return []
    read = totals.read + totals.heartbeats
    return [
        (
            held == read,
            f"source: {names} holds {held:,} rows between the first and the last offset, {read:,} were read "
            f"({totals.read:,} events, {totals.heartbeats:,} heartbeats)",
        )
    ]


def _pipeline_checks(books: "_Books", definition: Pipeline, totals: Totals) -> list[tuple[bool, str]]:
    table, epoch = definition.sink.table, books.epoch
    results = []
    pairs = "(event, window) pairs" if definition.aggregate.window else "events"
    if definition.sink.mode == "update" and not books.all_rows:
        results.append((True, f"{pairs}: {totals.pairs:,} read; {table} also keeps rows of earlier epochs"))
    elif definition.sink.mode == "update":
        groups = groups_table(definition)
        counted = books.figure("sum(__events)", groups)
        results.append(
            (
                counted + totals.pairs_late == totals.pairs,
                f"{pairs}: {totals.pairs:,} read = {counted:,} counted in {groups} + {totals.pairs_late:,} late",
            )
        )
    else:
        results.append(
            (
                totals.pairs_open >= 0,
                f"{pairs}: {totals.pairs:,} read = {totals.pairs_result:,} in results + {totals.pairs_late:,} late + "
                f"{totals.pairs_open:,} still open",
            )
        )
        if books.all_rows:
            written = books.figure("count(*)", table)
            results.append((written == totals.rows, f"rows: {totals.rows:,} written, {written:,} in {table}"))
    if definition.watermark and definition.watermark.late is not Late.DROP:
        late = books.figure("sum(len(missed_windows))", f"{table}__late", f"_epoch = {epoch}")
        results.append(
            (late == totals.pairs_late, f"late: {totals.pairs_late:,} pairs judged, {late:,} kept in {table}__late")
        )
    return results


def groups_table(definition: Pipeline) -> str:
    """The table that has a row for every group of an `update` sink."""
    return f"{definition.sink.table}__groups" if definition.top_n else definition.sink.table


def open_pairs(lake: Lake, definition: Pipeline, epoch: int, rows: list[tuple[int, LedgerRow]]) -> int:
    """(event, window) pairs that Spark's state must hold, by the ledger and the tables alone."""
    if definition.sink.mode == "append":
        return Totals.of(row for _, row in rows).pairs_open
    where = "true"
    if definition.aggregate.window is not None and rows:
        where = f"epoch_us(window_end) > {rows[-1][1].watermark_ms * 1000}"
    books = _Books(lake, definition.name, epoch, rows[-1][0] if rows else -1, all_rows=True)
    return books.figure("sum(__events)", groups_table(definition), where)


def _ingest_checks(books: "_Books", definition: Ingest, totals: Totals) -> list[tuple[bool, str]]:
    table = definition.sink.table
    quarantined = books.figure("count(*)", f"{table}__quarantine", f"_epoch = {books.epoch}")
    results = [
        (
            quarantined == totals.quarantined,
            f"quarantine: {totals.quarantined:,} set aside, {quarantined:,} kept in {table}__quarantine",
        )
    ]
    if books.all_rows:
        events = books.figure("count(*)", table, "NOT _heartbeat")
        results.append((events == totals.rows, f"bronze: {totals.rows:,} events written, {events:,} in {table}"))
    return results


@dataclass(frozen=True)
class _Books:
    """The tables of a pipeline as they were after one batch, so that a stream may run on while they are read."""

    lake: Lake
    pipeline: str
    epoch: int
    batch_id: int
    all_rows: bool

    def figure(self, measure: str, table: str, where: str = "true") -> int:
        """One number from a table, as of the batch; 0 where the table has no row."""
        version = self._version(table)
        rows = open_table(self.lake, table, version=version).to_pyarrow_dataset()
        try:
            with duckdb.connect() as connection, reading(self.lake, lambda _: [table], version=version):
                connection.register("books", rows)
                row = connection.execute(f"SELECT {measure} FROM books WHERE {where}").fetchone()
        except duckdb.Error as error:
            raise LakeUnavailableError(
                f"table {table}: in the lake {self.lake.uri}, cannot be read at version {version}: "
                f"{first_line(error)}. Nothing was changed."
            ) from error
        return int(row[0] or 0) if row else 0

    def _version(self, table: str) -> int:
        """The newest version of the table that no later batch has written."""
        version = newest = latest_version(self.lake, table)
        while version >= 0 and (commit := commit_at(self.lake, table, version)) is not None:
            stamp = decode(commit)
            if stamp is not None and (stamp.pipeline, stamp.epoch) == (self.pipeline, self.epoch):
                if stamp.batch_id <= self.batch_id:
                    return newest
                newest = version - 1
            version -= 1
        return newest
