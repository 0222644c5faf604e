"""The report of a table: one HTML page that needs nothing from elsewhere.

Data Docs of Great Expectations load their looks from the network, and cannot be written to S3.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from string import Template
from typing import Any

import obstore

from spark_jobs.lake import Lake
from spark_jobs.lake.quality import broken_before, newest_results
from spark_jobs.quality.suites import Suite

_BEFORE = 20

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$table</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem;
border-bottom: 1px solid #ddd; } th { font-weight: 600; background: #f6f6f6; } code { font-size: .9em; }
.ok { color: #17692f; } .fail { color: #a3141f; font-weight: 600; } .warn { color: #8a5a00; font-weight: 600; }
.none, .quiet { color: #666; }
</style></head><body>
<h1>$table</h1>
<p class="quiet">Written by $pipeline. $summary</p>
<h2>Expectations</h2>
<table><thead><tr><th>Result</th><th>Expectation</th><th>Observed</th><th>Rows</th><th>Checked</th></tr></thead>
<tbody>
$expectations
</tbody></table>
<h2>Broken in the last checks</h2>
$before
<p class="quiet">Values of personal columns are shown as ‹masked›. All results: table ops.quality.</p>
</body></html>
""")


def page_path(table: str) -> str:
    """Where the report of a table lies in the lake."""
    return f"_docs/quality/{table}/index.html"


def publish_page(lake: Lake, suite: Suite) -> str:
    """Writes the report of a table, from what `ops.quality` has.

    Returns:
        Its address.
    """
    newest = newest_results(lake, suite.pipeline, suite.table)
    before = broken_before(lake, suite.pipeline, suite.table, _BEFORE)
    obstore.put(lake.store, page_path(suite.table), page(suite, newest, before).encode())
    return lake.path(page_path(suite.table))


def page(suite: Suite, newest: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> str:
    """The report of a table as HTML.

    Args:
        suite: of the table.
        newest: rows of `ops.quality`, the newest of each expectation.
        before: and those of which the expectation was broken.
    """
    known = {row["expectation"]: row for row in newest}
    stated = [(each.name, each.severity, each.rule.condition) for each in suite.rows]
    stated += [(each.name, each.severity, "") for each in suite.tables]
    broken = [name for name, *_ in stated if name in known and not known[name]["success"]]
    checked = max((row["checked_at"] for row in newest), default=None)
    summary = f"{len(stated)} expectations, {len(broken)} broken. " if stated else ""
    summary += f"Last checked {_time(checked)}." if checked else "Not checked yet."
    return _PAGE.substitute(
        table=escape(suite.table),
        pipeline=escape(suite.pipeline),
        summary=escape(summary),
        expectations="\n".join(
            _expectation(name, severity, means, known.get(name)) for name, severity, means in stated
        ),
        before="\n".join(_before(before)),
    )


def _expectation(name: str, severity: str, means: str, row: Mapping[str, Any] | None) -> str:
    title = f"<code>{escape(name)}</code>" + (f'<br><span class="quiet">{escape(means)}</span>' if means else "")
    if row is None:
        return _cells('<span class="none">not checked yet</span>', title, "", "", "")
    return _cells(_verdict(bool(row["success"]), severity), title, _observed(row), _rows(row), _time(row["checked_at"]))


def _before(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        yield '<p class="quiet">None.</p>'
        return
    yield "<table><thead><tr><th>Checked</th><th>Expectation</th><th>Observed</th><th>Versions</th></tr></thead><tbody>"
    for row in rows:
        first = "all" if row["from_version"] is None else str(row["from_version"] + 1)
        versions = f"{first} to {row['to_version']}" if first != "all" else f"all up to {row['to_version']}"
        verdict = _verdict(False, row["severity"])
        named = f"<code>{escape(row['expectation'])}</code>"
        yield _cells(_time(row["checked_at"]), f"{verdict} {named}", _observed(row), escape(versions))
    yield "</tbody></table>"


def _cells(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


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
