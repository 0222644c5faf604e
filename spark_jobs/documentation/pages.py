"""The pages of tables as HTML; each needs nothing from elsewhere.

Data Docs of Great Expectations load their looks from the network, and cannot be written to S3.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from string import Template
from typing import Any

from spark_jobs.documentation.tables import TableDocument
from spark_jobs.quality.suites import Suite

_FRAME = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem;
border-bottom: 1px solid #ddd; } th { font-weight: 600; background: #f6f6f6; } code { font-size: .9em; }
a { color: #0b57a4; } .ok { color: #17692f; } .fail { color: #a3141f; font-weight: 600; }
.warn { color: #8a5a00; font-weight: 600; } .none, .quiet { color: #666; }
</style></head><body>
$body
</body></html>
""")


def index_page(found: Sequence[tuple[TableDocument, Sequence[Mapping[str, Any]]]]) -> str:
    """The list of all tables.

    Args:
        found: each table, with the rows of `ops.quality` that are the newest of its expectations.
    """
    rows = []
    for document, newest in found:
        table = document.ref.name
        link = f'<a href="{escape(table)}/index.html">{escape(table)}</a>'
        rows.append(
            _cells(link, escape(_first(document.description)), escape(document.definition.owner), _state(newest))
        )
    head = ("Table", "What it has", "Owner", "Expectations")
    return _framed("Tables", f"<h1>Tables</h1>\n{_table(head, rows)}")


def bare_index_page(tables: Iterable[str]) -> str:
    """A list of tables that have a page, by their names alone.

    Args:
        tables: with a page.
    """
    rows = [_cells(f'<a href="{escape(table)}/index.html">{escape(table)}</a>') for table in tables]
    more = '<p class="quiet">Tables that have a page. <code>tidemark docs</code> writes those of all tables.</p>'
    return _framed("Tables", f"<h1>Tables</h1>\n{more}\n{_table((), rows)}")


def table_page(
    document: TableDocument,
    suite: Suite | None,
    newest: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
) -> str:
    """The page of a table.

    Args:
        document: what its definition and its schema say.
        suite: its expectations; None: a table beside a result.
        newest: rows of `ops.quality`, the newest of each expectation.
        before: and those of which the expectation was broken.
    """
    return _framed(document.ref.name, "\n".join(_sections(document, suite, newest, before)))


def _sections(
    document: TableDocument,
    suite: Suite | None,
    newest: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    definition = document.definition
    yield f'<p class="quiet"><a href="../index.html">All tables</a></p>\n<h1>{escape(document.ref.name)}</h1>'
    owner = f" Owner: {escape(definition.owner)}." if definition.owner else ""
    missing = "" if document.exists else " Not in the lake yet."
    yield f'<p class="quiet">Written by {escape(definition.name)}.{owner}{missing}</p>'
    if document.description:
        yield f"<p>{escape(document.description)}</p>"
    yield _table((), list(_facts(document)))
    yield "<h2>Columns</h2>"
    yield _table(("Column", "Type", "Meaning", "Computed from"), [*_columns(document)])
    if suite is not None:
        yield "<h2>Expectations</h2>"
        yield from _expectations(suite, newest)
        yield "<h2>Broken in the last checks</h2>"
        yield from _before(before)
        yield '<p class="quiet">Values of personal columns are shown as ‹masked›. All results: table ops.quality.</p>'


def _facts(document: TableDocument) -> Iterator[str]:
    yield _cells("Reads", _tables(document.reads))
    if document.read_by:
        yield _cells("Read by", _tables(document.read_by))
    if document.rows_key:
        yield _cells("One row for each", ", ".join(f"<code>{escape(name)}</code>" for name in document.rows_key))


def _tables(names: Iterable[str]) -> str:
    return ", ".join(
        f'<a href="../{escape(name)}/index.html">{escape(name)}</a>'
        if name.startswith(("bronze.", "silver.", "gold."))
        else escape(name)
        for name in names
    )


def _columns(document: TableDocument) -> Iterator[str]:
    for each in document.columns:
        personal = ' <span class="warn">personal</span>' if each.personal else ""
        origins = "<br>".join(f"<code>{escape(name)}</code>" for name in each.origins)
        yield _cells(f"<code>{escape(each.name)}</code>{personal}", escape(each.type), escape(each.meaning), origins)


def _expectations(suite: Suite, newest: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    known = {row["expectation"]: row for row in newest}
    stated = [(each.name, each.severity, each.rule.condition) for each in suite.rows]
    stated += [(each.name, each.severity, "") for each in suite.tables]
    broken = [name for name, *_ in stated if name in known and not known[name]["success"]]
    checked = max((row["checked_at"] for row in newest), default=None)
    summary = f"{len(stated)} expectations, {len(broken)} broken. " if stated else ""
    summary += f"Last checked {_time(checked)}." if checked else "Not checked yet."
    yield f'<p class="quiet">{escape(summary)}</p>'
    rows = [_expectation(name, severity, means, known.get(name)) for name, severity, means in stated]
    yield _table(("Result", "Expectation", "Observed", "Rows", "Checked"), rows)


def _expectation(name: str, severity: str, means: str, row: Mapping[str, Any] | None) -> str:
    title = f"<code>{escape(name)}</code>" + (f'<br><span class="quiet">{escape(means)}</span>' if means else "")
    if row is None:
        return _cells('<span class="none">not checked yet</span>', title, "", "", "")
    return _cells(_verdict(bool(row["success"]), severity), title, _observed(row), _rows(row), _time(row["checked_at"]))


def _before(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        yield '<p class="quiet">None.</p>'
        return
    shown = []
    for row in rows:
        first = "all" if row["from_version"] is None else str(row["from_version"] + 1)
        versions = f"{first} to {row['to_version']}" if first != "all" else f"all up to {row['to_version']}"
        named = f"{_verdict(False, row['severity'])} <code>{escape(row['expectation'])}</code>"
        shown.append(_cells(_time(row["checked_at"]), named, _observed(row), escape(versions)))
    yield _table(("Checked", "Expectation", "Observed", "Versions"), shown)


def _framed(title: str, body: str) -> str:
    return _FRAME.substitute(title=escape(title), body=body)


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    titles = f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>" if head else ""
    lines = "\n".join(rows)
    return f"<table>{titles}<tbody>\n{lines}\n</tbody></table>"


def _cells(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _state(newest: Sequence[Mapping[str, Any]]) -> str:
    if not newest:
        return '<span class="none">not checked yet</span>'
    failing = sum(not row["success"] and row["severity"] == "fail" for row in newest)
    warned = sum(not row["success"] and row["severity"] != "fail" for row in newest)
    if failing:
        return f'<span class="fail">{failing} of {len(newest)} broken</span>'
    if warned:
        return f'<span class="warn">{warned} of {len(newest)} broken (warning)</span>'
    return f'<span class="ok">all {len(newest)} hold</span>'


def _verdict(success: bool, severity: str) -> str:
    if success:
        return '<span class="ok">holds</span>'
    return '<span class="fail">broken</span>' if severity == "fail" else '<span class="warn">broken (warning)</span>'


def _observed(row: Mapping[str, Any]) -> str:
    return escape(row["observed"]) + "".join(_samples(json.loads(row["samples"] or "[]")))


def _samples(samples: Iterable[Mapping[str, str | None]]) -> Iterator[str]:
    for sample in samples:
        shown = ", ".join(f"{name} = {'null' if value is None else value}" for name, value in sample.items())
        yield f"<br><code>{escape(shown)}</code>"


def _rows(row: Mapping[str, Any]) -> str:
    return "" if row["rows"] is None else f"{row['rows']:,}"


def _time(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M} UTC" if instant is not None else ""


def _first(text: str) -> str:
    """The first sentence."""
    head, stop, _ = text.partition(". ")
    return head + stop.strip()
