"""Inside a task: the lake, and how its log says what happened."""

import logging
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jobs.lake import Lake
    from spark_jobs.spec import Definition

_log = logging.getLogger("tidemark")

_SHOWN = 104
"""Characters of a line that fit beside the time and the level on a laptop's screen."""

_COMMAND = re.compile(r"`(?:tidemark|make|airflow) [^`]+`|(?<!`)\btidemark [a-z][^`,;]*$")
"""A command in a text: between quotes, or at the end of a line."""

_GLUE = "\ufffc"
"""Stands for a space at which no line is broken."""


def this_lake() -> "Lake":
    """The lake that TIDEMARK_LAKE names."""
    from spark_jobs.lake import Lake
    from spark_jobs.lake.settings import Settings

    return Lake.parse(Settings().lake)


def definition_of(lake: "Lake", pipeline: str) -> "Definition | None":
    """What a pipeline is that is registered, or has run on a lake."""
    from spark_jobs.lake.checkpoints.ran import as_it_began
    from spark_jobs.pipelines import registry

    return registry().get(pipeline) or as_it_began(lake, pipeline)


def pipeline_of(lake: "Lake", pipeline: str) -> "Definition":
    """The same; one that is neither fails the task."""
    if (found := definition_of(lake, pipeline)) is None:
        raise fail(f"pipeline `{pipeline}` is not registered, and has not run on {lake.uri}. Nothing was done.")
    return found


def log(text: str, level: int = logging.INFO) -> None:
    """Writes a text to the task's log in lines that the page shows whole; it escapes line breaks, and wraps nothing."""
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        # A link stays in one piece, and so does a command, which is to be pasted.
        whole = _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), line)
        parts = textwrap.wrap(whole, _SHOWN, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for part in parts or [""]:
            _log.log(level, "%s", part.replace(_GLUE, " "))


def fail(text: str) -> SystemExit:
    """The exception that fails the task and leaves a text, and nothing but the text, as the end of its log.

    Airflow prints thirty lines of traceback below any other exception. These tasks have no retries, which is what
    AirflowFailException would forbid.
    """
    log(text, logging.ERROR)
    return SystemExit(1)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Errors that Tidemark raises on purpose fail the task with their text; any other keeps its traceback."""
    from spark_jobs.spec.errors import TidemarkError

    try:
        yield
    except TidemarkError as error:
        raise fail(str(error)) from None
