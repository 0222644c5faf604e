"""Whether the books of a pipeline balance, from the lake alone."""

import duckdb

from spark_jobs.lake.ledger import LedgerRow, Totals, discrepancies
from spark_jobs.lake.location import Lake
from spark_jobs.lake.query import connect
from spark_jobs.spec import Definition, Ingest, Late, Pipeline


def checks(lake: Lake, definition: Definition, epoch: int, rows: list[tuple[int, LedgerRow]]) -> list[tuple[bool, str]]:
    """Holds the ledger of one epoch against itself and against the tables.

    Returns:
        Whether each equation holds, and the equation in words with its figures.
    """
    totals = Totals.of(row for _, row in rows)
    accounted = totals.read - (
        totals.on_time + totals.partly_late + totals.late + totals.duplicate + totals.quarantined + totals.filtered
    )
    results = [
        (
            accounted == 0,
            f"events: read {totals.read:,} = on time {totals.on_time:,} + partly late {totals.partly_late:,} + late "
            f"{totals.late:,} + duplicate {totals.duplicate:,} + quarantined {totals.quarantined:,} + filtered "
            f"{totals.filtered:,}",
        )
    ]
    windowed = isinstance(definition, Pipeline) and definition.aggregate.window is not None
    results += [(False, problem) for problem in discrepancies(rows, windowed=windowed)]
    if isinstance(definition, Pipeline):
        results += _pipeline_checks(lake, definition, epoch, totals)
    else:
        results += _ingest_checks(lake, definition, epoch, totals)
    return results


def _pipeline_checks(lake: Lake, definition: Pipeline, epoch: int, totals: Totals) -> list[tuple[bool, str]]:
    table = definition.sink.table
    results = []
    pairs = "(event, window) pairs" if definition.aggregate.window else "events"
    connection = connect(lake)
    if definition.sink.mode == "update":
        groups = f"{table}__groups" if definition.top_n else table
        counted = _sum(connection, f"SELECT sum(__events) FROM {_quoted(groups)}")
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
        written = _sum(connection, f"SELECT count(*) FROM {_quoted(table)}")
        if epoch == 1:
            results.append((written == totals.rows, f"rows: {totals.rows:,} written, {written:,} in {table}"))
    if definition.watermark and definition.watermark.late is not Late.DROP:
        late = _sum(connection, f"SELECT sum(len(missed_windows)) FROM {_quoted(table + '__late')} "
                                f"WHERE _epoch = {epoch}")  # fmt: skip
        results.append(
            (
                late == totals.pairs_late,
                f"late: {totals.pairs_late:,} pairs judged, {late:,} kept in {table}__late",
            )
        )
    return results


def _ingest_checks(lake: Lake, definition: Ingest, epoch: int, totals: Totals) -> list[tuple[bool, str]]:
    table = definition.sink.table
    connection = connect(lake)
    quarantined = _sum(connection, f"SELECT count(*) FROM {_quoted(table + '__quarantine')} WHERE _epoch = {epoch}")
    results = [
        (
            quarantined == totals.quarantined,
            f"quarantine: {totals.quarantined:,} set aside, {quarantined:,} kept in {table}__quarantine",
        )
    ]
    if epoch == 1:
        events = _sum(connection, f"SELECT count(*) FROM {_quoted(table)} WHERE NOT _heartbeat")
        results.append((events == totals.rows, f"bronze: {totals.rows:,} events written, {events:,} in {table}"))
    return results


def _sum(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    return int(row[0] or 0) if row else 0


def _quoted(table: str) -> str:
    layer, name = table.split(".", 1)
    return f'{layer}."{name}"'
