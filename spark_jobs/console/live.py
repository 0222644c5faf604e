"""Live progress of a driver."""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_jobs.lake.checkpoints.halts import HaltedError
from spark_jobs.lake.commands import command
from spark_jobs.spec import Pipeline

if TYPE_CHECKING:
    from spark_jobs.engine.driver import AnyQuery, Driver, Outcome

_REFRESH_S = 0.5
_PLAIN_EVERY_S = 10.0
_REASONS = 3
"""So many reasons are named at the end of a run; `tidemark quarantine` names all."""


class Progress:
    """Shows each pipeline's rows per second, watermark, lag, batch time, state and late events while it runs.

    The lag is the clock less the watermark: by how much the results that are final are behind.

    On a terminal it redraws one table; elsewhere (a log file) it prints the table every ten seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._last = 0.0
        self._told: set[str] = set()

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def tick(self, driver: "Driver") -> None:
        """Shows the state of the driver, at most a few times a second."""
        self._tell_failures(driver)
        now = time.monotonic()
        if now - self._last < (_REFRESH_S if self._live else _PLAIN_EVERY_S):
            return
        self._last = now
        table = progress_table(driver.queries, driver.outcomes, width=self._console.width)
        if self._live:
            self._live.update(table, refresh=True)
        else:
            self._console.print(table)

    def _tell_failures(self, driver: "Driver") -> None:
        """Tells at once what stopped a pipeline while others go on; the end of the run tells it again."""
        going_on = [name for name in driver.queries if name not in driver.outcomes]
        for name, outcome in driver.outcomes.items():
            if outcome.error is not None and name not in self._told and going_on:
                self._told.add(name)
                tell_failure(self._console, outcome)
                self._console.print(f"Still running: {', '.join(going_on)}.", highlight=False)


def tell_failure(console: Console, outcome: "Outcome") -> None:
    """Says what stopped a pipeline."""
    text = Text.assemble((f"{outcome.name} {_ended(outcome)[0]}:", "red"), f" {outcome.error}")
    console.print(text, soft_wrap=True, highlight=False)


def tell_set_aside(console: Console, driver: "Driver") -> None:
    """Says at the end what each pipeline has set aside in this run: how many rows, why, and what shows them."""
    for name, query in driver.queries.items():
        if query.total_quarantined:
            text = set_aside_text(name, query.total_quarantined, query.set_aside)
            console.print(Text(text), soft_wrap=True, highlight=False)


def set_aside_text(name: str, rows: int, reasons: Counter[str]) -> str:
    """What a pipeline has set aside, in a line.

    Args:
        name: of the pipeline.
        rows: how many.
        reasons: reason -> how many of them; a row may have several.
    """
    shown = [f"{why} {count:,}" for why, count in reasons.most_common(_REASONS)]
    more = f" and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
    why = f" ({', '.join(shown)}{more})" if shown else ""
    return (
        f"{name}: {rows:,} {'row' if rows == 1 else 'rows'} set aside{why}. To see them: {command('quarantine', name)}"
    )


def _ended(outcome: "Outcome | None") -> tuple[str, str]:
    if outcome is None:
        return "done", ""
    if isinstance(outcome.error, HaltedError):
        return "halted", "red"
    return ("failed", "red") if outcome.error else ("done", "")


def progress_table(
    queries: "Mapping[str, AnyQuery | None]", outcomes: "Mapping[str, Outcome | None]", *, width: int
) -> Table:
    """One line for each pipeline; in a narrow window with shorter figures, so that names stay whole.

    Args:
        queries: pipeline -> its query; None: it had not to be started.
        outcomes: of those that have ended.
        width: of the window.
    """
    narrow = width < _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0))
    table.add_column("pipeline", no_wrap=True)
    for heading in _SHORT_HEADINGS if narrow else _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("")
    for name, query in queries.items():
        state, style = _state(outcomes, name)
        if narrow:
            ended = "" if state == "running" else f" ({state})"
            table.add_row(Text(name + ended, style=style), *_figures(query, clock=_SHORT_CLOCK)[1:])
        else:
            table.add_row(name, *_figures(query, clock=_CLOCK), Text(state, style=style))
    return table


_WIDE = 120
_HEADINGS = ("batch", "events", "events/s", "watermark (UTC)", "lag", "batch time", "state", "late", "set aside")
_SHORT_HEADINGS = ("events", "per s", "final up to", "lag", "batch", "state", "late", "aside")
_CLOCK = "%Y-%m-%d %H:%M:%S"
_SHORT_CLOCK = "%m-%d %H:%M"


def _figures(query: "AnyQuery | None", *, clock: str) -> tuple[str, ...]:
    row = query.latest if query is not None else None
    if query is None or row is None:
        return ("-",) * 9
    rate = row["read"] / query.batch_seconds if query.batch_seconds else 0.0
    published_ms = row.watermark_ms + row.grace_ms
    is_pipeline = isinstance(query.definition, Pipeline)
    watermark, lag = "-", "-"
    if is_pipeline and row.watermark_ms:
        watermark = datetime.fromtimestamp(published_ms / 1000, UTC).strftime(clock)
        lag = _span(max(0.0, time.time() - published_ms / 1000))
    return (
        str(query.latest_batch_id),
        f"{query.total_read:,}",
        f"{rate:,.0f}",
        watermark,
        lag,
        f"{query.batch_seconds:.1f} s",
        f"{row['state_rows']:,}" if "state_rows" in row.terms else "-",
        f"{query.total_late:,}" if is_pipeline else "-",
        f"{query.total_quarantined:,}" if not is_pipeline else "-",
    )


def _state(outcomes: "Mapping[str, Outcome | None]", name: str) -> tuple[str, str]:
    """In a word, and its colour."""
    return _ended(outcomes[name]) if name in outcomes else ("running", "green")


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
