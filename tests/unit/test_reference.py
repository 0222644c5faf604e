"""docs/reference/pipelines.md names every field of a definition, and the defaults of its limits."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from spark_jobs.spec import Alerts, Ingest, Pipeline
from spark_jobs.spec.durations import format_duration
from tests.support.process import REPOSITORY

_TEXT = (REPOSITORY / "docs/reference/pipelines.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", _TEXT, re.MULTILINE | re.DOTALL))
HEADINGS = {Ingest: "Ingest", Pipeline: "Pipeline", Alerts: "Alerts"}


def rows(heading: str) -> dict[str, str]:
    """What the second column of a section's tables says of each name in the first."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTIONS[heading], re.MULTILINE))


def shown(field: str, value: object) -> str:
    match value:
        case timedelta():
            return format_duration(value)
        case float():
            return f"{value:.0%}".replace("%", " %")
        case int() if field.endswith("_bytes"):
            return f"{value // 2**30} GiB"
        case _:
            return f"{value:,}"


@pytest.mark.parametrize("model", HEADINGS, ids=HEADINGS.values())
def test_every_field_has_a_row(model: type[Ingest | Pipeline | Alerts]) -> None:
    assert set(model.model_fields) - {"kind"} <= set(rows(HEADINGS[model]))


def test_every_field_has_a_word_on_whether_it_may_change() -> None:
    said = set(re.findall(r"`(\w+)`", SECTIONS["What may change under a checkpoint"]))
    assert (set(Ingest.model_fields) | set(Pipeline.model_fields)) - {"kind"} <= said


def test_every_limit_is_shown_with_its_default() -> None:
    defaults = {name: shown(name, value) for name, value in Alerts()}
    assert rows("Alerts") == defaults
