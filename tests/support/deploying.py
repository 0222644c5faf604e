"""Deploys for tests: planned and executed at once."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs.control.desired.deployment import execute, plan
from spark_jobs.control.desired.orders import OrderOutcome
from spark_jobs.lake import Lake
from spark_jobs.operations.shadow.plan import plan_shadows
from spark_jobs.spec import Definition


def deploy(lake: Lake, definitions: Iterable[Definition], *, by: str = "a test") -> tuple[OrderOutcome, ...]:
    """Orders that pipelines run."""
    return execute(lake, plan(lake, definitions), by=by)


def beside(lake: Lake, *definitions: Definition) -> None:
    """Orders shadows of definitions."""
    planned, _ = plan_shadows(lake, definitions)
    execute(lake, planned, by="a test")
