"""Whoever is sent to the runbook finds the paragraph."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from spark_jobs.control.monitoring import health
from tests.support.compose import read_yaml
from tests.support.process import REPOSITORY

RUNBOOK = REPOSITORY / "docs/operate/runbook.md"
KIND = re.compile(r"[a-z]+(-[a-z]+)+")


def anchor(heading: str) -> str:
    """As GitHub makes it from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> list[str]:
    return [anchor(line.lstrip("#")) for line in text.splitlines() if re.match("#+ ", line)]


def kinds() -> set[str]:
    """Every kind of breach that the health of a pipeline can come to, from its source: what a breach is made with, and
    the literals with hyphens, which only kinds have."""
    tree = ast.parse(inspect.getsource(health))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Breach"]
    first = [node.args[0] for node in calls]
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.value for node in first if isinstance(node, ast.Constant)} | {
        node.value for node in literals if KIND.fullmatch(node.value)
    }


HEADINGS = anchors(RUNBOOK.read_text())


def test_the_kinds_are_found_in_the_source() -> None:
    assert {"not-running", "no-supervisor", "checkpoint-failing", "state-bytes", "late-share", "restarts"} <= kinds()
    assert len(kinds()) >= 16


@pytest.mark.parametrize("kind", sorted({*kinds(), "monitor-stopped", "lake-unreachable"}))
def test_every_alert_has_its_paragraph(kind: str) -> None:
    assert HEADINGS.count(kind) == 1


def test_every_rule_of_prometheus_leads_to_a_paragraph() -> None:
    groups = read_yaml(REPOSITORY / "infra/prometheus/rules.yml")["groups"]
    links = [rule["annotations"]["runbook"] for group in groups for rule in group["rules"]]
    assert links
    for link in links:
        file, _, place = link.partition("#")
        assert (REPOSITORY / file) == RUNBOOK
        assert place in HEADINGS


def test_every_link_within_the_runbook_and_out_of_it_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK.read_text()):
        file, _, place = target.partition("#")
        text = (RUNBOOK.parent / file).read_text() if file else RUNBOOK.read_text()
        assert not place or place in anchors(text), target


def test_twenty_faults_are_described_each_with_what_to_do() -> None:
    faults = RUNBOOK.read_text().partition("# Faults\n")[2].split("\n## ")[1:]
    assert len(faults) >= 20
    for fault in faults:
        assert all(f"*{part}*:" in fault for part in ("Seen", "Means", "Do")), fault.splitlines()[0]


def test_the_commands_that_it_names_exist() -> None:
    commands = set(re.findall(r"`tidemark ([a-z]+)", RUNBOOK.read_text()))
    sources = "".join(file.read_text() for file in (REPOSITORY / "spark_jobs/cli").glob("*.py"))
    assert commands
    for command in commands:
        assert re.search(rf'def {command}\(|name="{command}"', sources), command
