"""Tables, ledgers and late rows as a person reads them."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_jobs.lake import Lake, query
from spark_jobs.lake.inventory import TableSummary
from spark_jobs.lake.ledger import LedgerRow, Totals
from spark_jobs.spec import Pipeline

_EVENT_COLUMNS = ("read", "on_time", "partly_late", "late", "duplicate", "quarantined", "filtered")


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> Table:
    """Any rows, numbers to the right."""
    # Text, not str: what stands in data is never taken for rich's markup.
    table = Table(title=title and Text(title), title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        values = [row[index] for row in rows if row[index] is not None]
        numeric = bool(values) and all(isinstance(value, int | float | Decimal) for value in values)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | Decimal):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.12g}"
    return str(value)


def print_summaries(console: Console, summaries: Sequence[TableSummary]) -> None:
    """`tidemark tables`."""
    console.print(
        rows_table(
            ("table", "rows", "files", "MB", "newest event", "final up to", "late share"),
            [
                (
                    summary.table,
                    summary.rows,
                    summary.files,
                    Decimal(summary.size_bytes).scaleb(-6).quantize(Decimal("0.01")),
                    _time(summary.newest_event),
                    _time(summary.watermark),
                    "-" if summary.late_share is None else f"{summary.late_share:.2%}",
                )
                for summary in summaries
            ],
        )
    )


def _time(value: Any) -> str:
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def print_ledger(
    console: Console,
    pipeline: str,
    epoch: int,
    rows: Sequence[tuple[int, LedgerRow]],
    checks: Sequence[tuple[bool, str]],
    *,
    last: int | None,
) -> None:
    """`tidemark ledger`: the equation batch by batch and in total, then each check in words.

    Args:
        console: where to.
        pipeline: its name.
        epoch: of the checkpoint.
        rows: batch number and ledger row.
        checks: whether it holds, and what it says.
        last: show only so many batches, the newest; None shows all.
    """
    totals = Totals.of(row for _, row in rows)
    shown = rows if last is None else rows[-last:]
    table = Table(title=f"{pipeline}, epoch {epoch}: events", title_justify="left", box=None, pad_edge=False)
    for name in ("batch", *_EVENT_COLUMNS, "pairs", "pairs late", "in results", "state", ""):
        table.add_column(name.replace("_", " "), justify="right")
    if len(shown) < len(rows):
        table.add_row("…")
    for batch_id, row in shown:
        table.add_row(
            str(batch_id),
            *(_cell(getattr(row, name)) for name in _EVENT_COLUMNS),
            _cell(row.pairs),
            _cell(row.pairs_late),
            _cell(row.pairs_result),
            _cell(row.state_groups),
            "[green]=[/green]" if row.balanced else "[red]≠[/red]",
        )
    table.add_section()
    table.add_row(
        "total",
        *(_cell(getattr(totals, name)) for name in _EVENT_COLUMNS),
        _cell(totals.pairs),
        _cell(totals.pairs_late),
        _cell(totals.pairs_result) if any(row.pairs_result is not None for _, row in rows) else "-",
        "",
        "",
    )
    console.print(table)
    for holds, text in checks:
        console.print(Text.assemble(("balanced", "green") if holds else ("UNBALANCED", "red"), f"  {text}"))


def print_late(console: Console, lake: Lake, pipeline: Pipeline, limit: int) -> None:
    """`tidemark late`: the newest late events, each with what it missed and by how much."""
    layer, name = f"{pipeline.sink.table}__late".split(".", 1)
    hidden = ("_source", "_ingest_time", "_ingest_seq", "missed_windows", "engine_watermark", "_epoch")
    columns, rows = query.run(
        lake,
        f"SELECT * EXCLUDE ({', '.join(hidden)}), missed_windows[1].window_start AS first_missed, "
        f"len(missed_windows) AS windows_missed "
        f'FROM {layer}."{name}" ORDER BY _epoch DESC, _batch_id DESC, late_by_ms DESC LIMIT {limit}',
    )
    console.print(rows_table(columns, rows, title=f"{pipeline.name}: late events, newest batch first"))
