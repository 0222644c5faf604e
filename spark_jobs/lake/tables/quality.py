"""`ops.quality`: what each check of a table has found, a row for each expectation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import append_rows
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.query import fetch_rows

TABLE = "ops.quality"

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("checked_at", _TIME),
        ("pipeline", pa.string()),
        ("table", pa.string()),
        ("expectation", pa.string()),
        ("severity", pa.string()),
        ("success", pa.bool_()),
        ("observed", pa.string()),
        ("unexpected_share", pa.float64()),
        ("unexpected_count", pa.int64()),
        ("rows", pa.int64()),
        ("samples", pa.string()),
        ("from_version", pa.int64()),
        ("to_version", pa.int64()),
        ("range", pa.string()),
        ("final_before", _TIME),
    ]
)


@dataclass(frozen=True)
class Result:
    """What a check has found of one expectation.

    Attributes:
        expectation: its name.
        severity: `warn` or `fail`.
        success: whether it holds.
        observed: what was seen, in words.
        unexpected_count: rows that break it; None: it is not about rows.
        rows: that were looked at; None: it is not about rows.
        samples: some of the rows that break it, as column -> value; personal values are masked.
    """

    expectation: str
    severity: str
    success: bool
    observed: str
    unexpected_count: int | None = None
    rows: int | None = None
    samples: Sequence[Mapping[str, str | None]] = field(default=())

    @property
    def unexpected_share(self) -> float | None:
        """Of the rows that were looked at."""
        if self.unexpected_count is None or self.rows is None:
            return None
        return self.unexpected_count / self.rows if self.rows else 0.0

    @property
    def fails(self) -> bool:
        """Whether the check fails for it."""
        return not self.success and self.severity == "fail"


@dataclass(frozen=True)
class CheckPosition:
    """Up to where a table was checked.

    Attributes:
        version: of the table, itself included.
        final_before: rows that are revised: those that were final by then; None: other tables.
    """

    version: int
    final_before: datetime | None = None


@dataclass(frozen=True)
class Check:
    """A check of one table.

    Attributes:
        pipeline: that writes the table.
        table: such as `gold.top_products`.
        checked_at: when.
        since: where the check before it ended; None: all rows were looked at.
        upto: where this one ends.
        range: of the rows' times, in words.
        rows: that were looked at.
        results: one for each expectation that was looked at.
        left_out: expectations of rows that were not, since there are no new rows.
        read_by: `duckdb` or `spark`.
    """

    pipeline: str
    table: str
    checked_at: datetime
    since: CheckPosition | None
    upto: CheckPosition
    range: str
    rows: int
    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()
    read_by: str = "duckdb"

    @property
    def broken(self) -> tuple[Result, ...]:
        """Those that fail the check."""
        return tuple(result for result in self.results if result.fails)


def publish(lake: Lake, check: Check) -> None:
    """Appends what a check has found; the next one goes on from here."""
    rows = [
        {
            "checked_at": check.checked_at,
            "pipeline": check.pipeline,
            "table": check.table,
            "expectation": result.expectation,
            "severity": result.severity,
            "success": result.success,
            "observed": result.observed,
            "unexpected_share": result.unexpected_share,
            "unexpected_count": result.unexpected_count,
            "rows": result.rows,
            "samples": json.dumps(list(result.samples), ensure_ascii=False),
            "from_version": check.since.version if check.since else None,
            "to_version": check.upto.version,
            "range": check.range,
            "final_before": check.upto.final_before,
        }
        for result in check.results
    ]
    if rows:
        append_rows(lake, TABLE, pa.Table.from_pylist(rows, schema=SCHEMA))


def last_mark(lake: Lake, pipeline: str, table: str) -> CheckPosition | None:
    """Up to where a table was checked; None: it never was."""
    found = _query(
        lake,
        table,
        'SELECT to_version, final_before FROM kept WHERE pipeline = $pipeline AND "table" = $table '
        "ORDER BY checked_at DESC, to_version DESC LIMIT 1",
        {"pipeline": pipeline, "table": table},
    )
    return CheckPosition(found[0]["to_version"], found[0]["final_before"]) if found else None


def newest_results(lake: Lake, pipeline: str, table: str) -> list[dict[str, Any]]:
    """The newest row of each expectation of a table."""
    return _query(
        lake,
        table,
        'SELECT DISTINCT ON (expectation) * FROM kept WHERE pipeline = $pipeline AND "table" = $table '
        "ORDER BY expectation, checked_at DESC",
        {"pipeline": pipeline, "table": table},
    )


def broken_before(lake: Lake, pipeline: str, table: str, limit: int) -> list[dict[str, Any]]:
    """The newest rows of a table whose expectation was broken, the newest first."""
    return _query(
        lake,
        table,
        'SELECT * FROM kept WHERE pipeline = $pipeline AND "table" = $table AND NOT success '
        f"ORDER BY checked_at DESC LIMIT {limit}",
        {"pipeline": pipeline, "table": table},
    )


def _query(lake: Lake, table: str, sql: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

    try:
        opened = open_table(lake, TABLE)
    except MissingTableError:
        return []
    mine = opened.to_pyarrow_dataset().scanner(filter=ds.field("table") == table)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("kept", mine.to_reader())
        return fetch_rows(connection, sql, values)
