"""Whether pipelines may be run by hand; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake


@dataclass(frozen=True)
class RunPlan:
    """What is run by hand.

    Attributes:
        pipeline: the names of the pipelines, with commas; no driver runs one of them.
    """

    pipeline: str
    notices: tuple[str, ...] = ()
    nothing_to_do: str | None = None


def plan_run(lake: Lake, pipelines: Sequence[str]) -> RunPlan:
    """What is run by hand.

    Raises:
        DeployError: if a driver runs one of them.
    """
    refuse_deployed(lake, pipelines)
    return RunPlan(", ".join(pipelines))
