"""Prometheus' rules and Grafana's dashboard ask for figures that drivers and supervisor serve, and rules lead to the
runbook."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.job.prometheus import PulseCollector
from spark_jobs.spec import Alerts
from tests.support.compose import read_yaml
from tests.support.process import REPOSITORY

RULES: list[dict[str, Any]] = [
    rule for group in read_yaml(REPOSITORY / "infra/prometheus/rules.yml")["groups"] for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = json.loads((REPOSITORY / "infra/grafana/dashboards/streams.json").read_text())["panels"]
SUPERVISORS = {
    "tidemark_supervisor_active",
    "tidemark_driver_up",
    "tidemark_driver_restarts_total",
    "tidemark_monitor_last_look_timestamp_seconds",
}
QUERIES = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
RUNBOOK = {"monitor-stopped", "no-supervisor", "not-running", "no-progress", "watermark-lag", "late-share"}


def drivers() -> set[str]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    pulse = Pulse(job="shop", term=1, host="here", pid=1, pid_born="", started_at=now, at=now, sequence=1, pipelines={})
    families = PulseCollector(lambda: pulse).collect()
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_asks_for_figures_that_are_served(query: str) -> None:
    asked = set(re.findall(r"\btidemark_\w+", query))
    assert asked
    assert asked <= drivers() | SUPERVISORS


def test_the_dashboard_shows_every_figure() -> None:
    shown = {
        name for panel in PANELS for target in panel["targets"] for name in re.findall(r"tidemark_\w+", target["expr"])
    }
    assert (drivers() | SUPERVISORS) - shown == set()


def test_every_kind_of_trouble_has_a_rule_that_leads_to_its_paragraph() -> None:
    linked = {rule["annotations"]["runbook"].partition("docs/operate/runbook.md#")[2] for rule in RULES}
    assert linked == RUNBOOK
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in RULES)
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning"}


def test_every_rule_is_tried_by_the_rules_own_tests() -> None:
    tests = read_yaml(REPOSITORY / "infra/prometheus/rules_test.yml")["tests"]
    tried = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case.get("exp_alerts")}
    assert tried == {rule["alert"] for rule in RULES}


def test_no_limit_is_narrower_than_that_of_a_definition() -> None:
    default = Alerts()
    assert default.max_silence is not None
    assert default.max_watermark_lag is not None
    assert default.max_late_share is not None
    limits = {
        "NoProgress": default.max_silence.total_seconds(),
        "WatermarkLag": default.max_watermark_lag.total_seconds(),
        "LateShare": default.max_late_share,
    }
    rules = {rule["alert"]: rule for rule in RULES}
    for alert, limit in limits.items():
        found = re.search(r"> ([0-9.]+)", rules[alert]["expr"])
        assert found is not None
        assert float(found[1]) >= limit


def test_every_panel_has_a_place_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
