"""Which checkpoints of a lake have to be made to fit, as a value; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.moving import Adoption, plan_adoption
from spark_jobs.spec import Definition


@dataclass(frozen=True)
class AdoptPlan:
    """What has to be done for several pipelines.

    Attributes:
        adoptions: one for each, also where its checkpoint fits.
    """

    adoptions: tuple[Adoption, ...]
    notices: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the pipelines, with commas."""
        return ", ".join(each.epoch.pipeline for each in self.adoptions)

    @property
    def nothing_to_do(self) -> str | None:
        """Why no checkpoint is changed; None: one is."""
        return None if any(each.before for each in self.adoptions) else "every checkpoint fits"


def plan_adoptions(lake: Lake, definitions: Sequence[Definition], *, before: str | None) -> AdoptPlan:
    """What has to be done for pipelines; where one cannot be adopted, none is.

    Args:
        lake: where it is now.
        definitions: of the pipelines.
        before: the lake's address before; None: the checkpoints tell it.

    Raises:
        DeployError: if a driver runs one of them.
        MissingTableError: if one has not run on this lake.
        AdoptionRefusedError: if one cannot be made to fit.
    """
    refuse_deployed(lake, [each.name for each in definitions])
    return AdoptPlan(tuple(plan_adoption(lake, each, before=before) for each in definitions))
