"""What is run by hand, and what is known of it before anything starts; made without a JVM, written nowhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.caught_up import is_caught_up
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.spec import Definition, Pipeline


@dataclass(frozen=True)
class RunPlan:
    """What is run by hand.

    Attributes:
        definitions: of the pipelines; no driver runs one of them.
        refused: pipelines that cannot run, each with why; the others are not affected.
        caught_up: whether all of them have read what there is, and no more than that is asked for.
    """

    definitions: tuple[Definition, ...]
    refused: tuple[tuple[str, TidemarkError], ...] = ()
    caught_up: bool = False
    notices: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the pipelines, with commas."""
        return ", ".join(each.name for each in self.definitions)

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing is started; None: something is."""
        if not self.definitions:
            return "none of the pipelines can run"
        return "they have read all that there is" if self.caught_up else None


def plan_run(lake: Lake, definitions: Sequence[Definition], *, until_caught_up: bool = False) -> RunPlan:
    """What is run by hand.

    Args:
        lake: where.
        definitions: of the pipelines.
        until_caught_up: whether they end when they have read what there is, and do nothing else.

    Raises:
        DeployError: if a driver runs one of them.
    """
    refuse_deployed(lake, [each.name for each in definitions])
    fitting, refused = [], []
    for each in definitions:
        try:
            if isinstance(each, Pipeline):
                refuse_misfit(lake, each, definitions)
            fitting.append(each)
        except TidemarkError as error:
            refused.append((each.name, error))
    caught_up = until_caught_up and bool(fitting) and all(is_caught_up(lake, each) for each in fitting)
    return RunPlan(tuple(fitting), tuple(refused), caught_up)
