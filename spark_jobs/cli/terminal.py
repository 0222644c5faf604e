"""Where commands speak to people."""

import sys

from rich.text import Text

from spark_jobs.console.plain import PlainConsole

# Without a terminal (a log, a pipe) lines may be longer than its default of 80.
out = PlainConsole(width=None if sys.stdout.isatty() else 140)
err = PlainConsole(stderr=True)


def complain(text: str) -> None:
    """Tells what went wrong."""
    err.print(Text.assemble(("error:", "red"), f" {text}"), soft_wrap=True, highlight=False)


def warn(text: str) -> None:
    """Tells what somebody should know, and what stops nothing."""
    err.print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True, highlight=False)


def tell(text: str) -> None:
    """Tells lines of a plan or of what was done, as they are."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Tells a piece of news, in the terminal's own colour."""
    out.print(text, highlight=False, markup=False)
