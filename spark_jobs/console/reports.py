"""Tables, ledgers and late rows as a person reads them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry, Totals, named
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import EpochLedger
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.inventory import TableSummary
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.lake.tables.quarantine import Selection, counted, samples
from spark_jobs.plan import logical as plan
from spark_jobs.plan.columns import EVENT_ID, SOURCE_TABLE
from spark_jobs.plan.equations import Equation
from spark_jobs.plan.personal import personal_with
from spark_jobs.spec import Definition, DefinitionError, Pipeline
from spark_jobs.spec.durations import format_duration
from spark_jobs.spec.names import in_duckdb, text_in_duckdb, visible, visible_line
from spark_jobs.spec.personal import MASK, is_personal

_ALWAYS_SHOWN = ("read", "on_time", "late")


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> Table:
    """Any rows, numbers to the right."""
    # Text, not str: what stands in data is never taken for rich's markup.
    table = Table(title=title and Text(title), title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = _is_numeric([row[index] for row in rows])
        table.add_column(Text(visible(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(_cell(value))) for value in row))
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
    if isinstance(value, datetime):
        utc = value.astimezone(UTC) if value.tzinfo else value
        whole = utc.replace(microsecond=0, tzinfo=None).isoformat(" ")
        return whole + (f".{utc.microsecond:06d}".rstrip("0") if utc.microsecond else "")
    return str(value)


def print_rows(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Any number of rows, one a line, numbers to the right; a null is NULL, and an empty text is empty.

    Rich lays a table out anew for each cell: that takes a minute for what this prints in a second. On a terminal that
    is too narrow, cells go on in the next line.
    """
    names = [visible_line(name) for name in columns]
    cells = [[_NULL if value is None else visible_line(_cell(value)) for value in row] for row in rows]
    natural = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    widths = _fitting(natural, console.width - _GAP * max(0, len(names) - 1)) if console.is_terminal else natural
    right = [_is_numeric([row[index] for row in rows]) for index in range(len(names))]
    lines = [line for row in (names, *cells) for line in _lines(row, widths, right)]
    console.file.write("".join(f"{line}\n" for line in lines))


_NULL = "NULL"
_GAP = 2


def _fitting(natural: Sequence[int], room: int) -> list[int]:
    """Widths of columns: as they are, or the widest ones as wide as leaves room for all."""
    widest = max(natural, default=0)
    while widest > 1 and sum(min(each, widest) for each in natural) > room:
        widest -= 1
    return [min(each, widest) for each in natural]


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """A row as one line, or as several where a cell does not fit."""
    folded = [
        chop_cells(cell, width) if _width(cell) > width else [cell] for cell, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*folded, fillvalue=""):
        padded = (
            " " * (width - _width(part)) + part if to_the_right else part + " " * (width - _width(part))
            for part, width, to_the_right in zip(parts, widths, right, strict=True)
        )
        yield (" " * _GAP).join(padded).rstrip()


def _width(text: str) -> int:
    """How many places of a terminal a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float | Decimal) for value in known)


def print_summaries(console: Console, summaries: Sequence[TableSummary]) -> None:
    """Prints what `tidemark tables` shows: a line for each table."""
    console.print(
        rows_table(
            ("table", "rows", "files", "MB", "newest event", "final up to", "late share"),
            [
                (summary.table, *[None] * 6)
                if summary.unreadable
                else (
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
    if value is None:
        return "-"
    # A table that another program has written may have anything in that column.
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)


def print_ledger(
    console: Console,
    pipeline: str,
    epoch: int,
    ledger: EpochLedger,
    equations: Sequence[Equation],
    checks: Sequence[tuple[bool, str]],
    *,
    last: int | None,
) -> None:
    """`tidemark ledger`: the terms of each equation batch by batch and in total, then each check in words.

    A term that is nothing in every batch has no column.

    Args:
        console: where to.
        pipeline: its name.
        epoch: of the checkpoint.
        ledger: of the epoch.
        equations: of the pipeline's plan.
        checks: whether it holds, and what it says.
        last: show only so many batches, the newest; None shows all of them.
    """
    totals, rows = ledger.totals, ledger.rows
    shown = rows if last is None else rows[max(0, len(rows) - last) :]
    names = _shown_terms(equations, totals)
    table = Table(box=None, pad_edge=False)
    for heading in ("batch", *map(named, names), ""):
        table.add_column(heading, justify="right", no_wrap=True)
    if len(shown) < totals.batches:
        table.add_row("…")
    for batch_id, row in shown:
        verdict = Text("=", "green") if row.balanced else Text("≠", "red")
        said = str(batch_id) if row.kind == "batch" else f"{row.kind} after {batch_id}"
        table.add_row(said, *(_cell(row.terms.get(name)) for name in names), verdict)
    table.add_section()
    table.add_row("total", *("" if name == "state_rows" else _cell(totals[name]) for name in names), "")
    # A figure is never cut off: where the terminal is too narrow, it wraps the lines.
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    console.print(Text(f"{pipeline}, epoch {epoch}: events", "italic"))
    console.print(Segments(console.render(table, console.options.update(width=natural))), soft_wrap=True, end="")
    if last is None and len(shown) < totals.batches:
        console.print(Text(f"{totals.batches - len(shown):,} earlier batches are in the totals; to see them: --last N"))
    for line in (*_asides(totals), *_decided(shown)):
        console.print(Text(line))
    for holds, text in checks:
        console.print(Text.assemble(("balanced", "green") if holds else ("UNBALANCED", "red"), f"  {text}"))


def _decided(shown: Sequence[tuple[int, LedgerEntry]]) -> Iterator[str]:
    """The batches of which a person had rows set aside."""
    for batch_id, entry in shown:
        if entry.decision_id is not None:
            reasons = ", ".join(why for why in entry.reasons if not why.startswith(WARNING))
            yield f"batch {batch_id}: {entry['quarantined']:,} set aside ({reasons}), decision {entry.decision_id}"


def _shown_terms(equations: Sequence[Equation], totals: Totals) -> list[str]:
    """The terms of the equations that say something, each once."""
    terms = [term for equation in equations for term in (equation.whole, *equation.parts)]
    if "pairs" in totals.terms:
        terms += ["pairs", "pairs_late"]
    found = [term for term in dict.fromkeys(terms) if term in _ALWAYS_SHOWN or totals[term]]
    return [*found, *(["state_rows"] if "state_rows" in totals.terms else [])]


def _asides(totals: Totals) -> list[str]:
    """What the equation does not tell apart."""
    reasons = totals.reasons
    told = {
        "quarantined": {why: count for why, count in reasons.items() if not why.startswith(WARNING)},
        "warned": {why.removeprefix(WARNING): count for why, count in reasons.items() if why.startswith(WARNING)},
    }
    lines = [
        f"{what}: " + ", ".join(f"{why} {count:,}" for why, count in sorted(whys.items(), key=lambda why: -why[1]))
        for what, whys in told.items()
        if whys
    ]
    if totals["unknown"]:
        lines.append(
            f"no column takes: {', '.join(totals.unknown_fields)}, in {totals['unknown']:,} of "
            f"{totals['searched']:,} events searched"
        )
    if totals.nulls:
        nulls = Counter(totals.nulls).most_common()
        lines.append("null: " + ", ".join(f"{name} {count:,}" for name, count in nulls))
    if totals["timeless"]:
        lines.append(
            f"no event time: {totals['timeless']:,} events, hence in no window; they are in bronze. Their time is "
            "null, outside the years 1 to 9999, or further ahead of their arrival than max_future"
        )
    if totals["within_grace"]:
        lines.append(f"on time: {totals['within_grace']:,} of them within grace")
    if totals["heartbeats"]:
        lines.append(f"heartbeats: {totals['heartbeats']:,} (they move the watermark and are no events)")
    return lines


def print_late(console: Console, lake: Lake, pipeline: Pipeline, limit: int) -> None:
    """`tidemark late`: the newest late events, each with what it missed and by how much."""
    operator = plan.build(pipeline).operator
    if operator is None or not operator.output.keeps_late:
        raise DefinitionError(
            f"pipeline `{pipeline.name}` keeps no late events; see `{command('ledger', pipeline.name)}`"
        )
    table = operator.output.late.name
    if not exists(lake, table):
        raise MissingTableError(
            f"table {table}: not in the lake {lake.uri}. It comes with the first run: {command('run', pipeline.name)}"
        )
    known = {field.name for field in open_table(lake, table).schema().fields}
    keys = [column for column in (SOURCE_TABLE, *operator.output.keys) if column in known and column != EVENT_ID]
    time = str(pipeline.event_time)
    # Column -> what stands above it, and how it is read.
    named = {EVENT_ID: ("event", in_duckdb(EVENT_ID)), time: (f"{time} (UTC)", _clock_sql(in_duckdb(time)))}
    named |= {key: (key, in_duckdb(key)) for key in keys}
    hidden = personal_with(pipeline).of(table)
    named |= {each: (label, text_in_duckdb(MASK)) for each, (label, _) in named.items() if is_personal(each, hidden)}
    shown = list(named.values())
    if operator.lateness.in_windows:
        first = _clock_sql("missed_windows[1].window_start")
        shown += [
            ("first window missed", text_in_duckdb(MASK) if is_personal("missed_windows", hidden) else first),
            ("missed", "len(missed_windows)"),
            ("counted elsewhere", "partly_late"),
        ]
    if "settled_at" in known:
        shown.append(("repaired (UTC)", f"coalesce({_clock_sql('settled_at')}, 'not yet')"))
    _, rows = query.run(
        lake,
        f"SELECT {', '.join(sql for _, sql in shown)}, late_by_ms FROM {query.view_of(table)} "
        f"ORDER BY _epoch DESC, _batch_id DESC, late_by_ms DESC LIMIT {limit}",
    )
    rows = [(*row[:-1], _lateness(int(str(row[-1])))) for row in rows]
    console.print(
        rows_table(
            (*(label for label, _ in shown), "late by"), rows, title=f"{pipeline.name}: late events, newest batch first"
        )
    )


def print_quarantine(console: Console, lake: Lake, definition: Definition, selection: Selection, number: int) -> None:
    """`tidemark quarantine`: the rows by reason, some of each, and a replay that has not ended."""
    counts = counted(lake, definition, selection)
    if not counts:
        console.print(Text(f"{definition.name}: nothing of this kind is in its quarantine"))
    else:
        table = rows_table(
            ("reason", "rows", "first (UTC)", "newest (UTC)"),
            [(each.reason, each.rows, _time(each.first), _time(each.newest)) for each in counts],
            title=f"{definition.name}: set aside",
        )
        console.print(table)
    shown = (
        samples(lake, definition, selection, number, personal=personal_with(definition)) if number and counts else {}
    )
    for each in counts:
        for text in shown.get(each.reason, ()):
            console.print(Text(visible_line(f"{each.reason}: {text}")), soft_wrap=True)
    if (unfinished := open_replay(lake, definition.name)) is not None:
        console.print(
            Text(
                f"{unfinished.run}, begun by {unfinished.by} at {_time(unfinished.opened_at)} UTC, has not ended: "
                f"{command('replay', definition.name)}"
            ),
            soft_wrap=True,
        )


def _clock_sql(time: str) -> str:
    return f"strftime({time}, '%Y-%m-%d %H:%M:%S')"


def _lateness(late_by_ms: int) -> str:
    """To the second, and from an hour on to the minute: the rest tells a person nothing."""
    if late_by_ms < 1000:
        return f"{late_by_ms} ms"
    coarse_s = 60 if late_by_ms >= 3_600_000 else 1
    return format_duration(timedelta(seconds=late_by_ms // 1000 // coarse_s * coarse_s))
