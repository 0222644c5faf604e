"""What people ask for about alerts: refused for what was never deployed, done, and told in words."""

from collections.abc import Sequence
from datetime import datetime

from spark_jobs.control.desired import orders
from spark_jobs.control.monitoring import acknowledgements, mutes
from spark_jobs.lake import Lake
from spark_jobs.spec import DefinitionError


def mute(lake: Lake, names: Sequence[str], *, until: datetime | None) -> str:
    """Keeps the alerts of pipelines from failing their tasks and notifying anybody; None: not any more.

    Raises:
        DefinitionError: if one has never been deployed.
    """
    _refuse_unknown("mute", lake, names)
    mutes.mute(lake, names, until=until)
    told = "mute ended; alerts are sent again" if until is None else f"muted until {until:%Y-%m-%d %H:%M} UTC"
    return f"{', '.join(names)}: {told}"


def acknowledge(lake: Lake, names: Sequence[str], *, at: datetime) -> str:
    """Takes note of what has happened to pipelines so far.

    Raises:
        DefinitionError: if one has never been deployed.
    """
    _refuse_unknown("acknowledge", lake, names)
    acknowledgements.acknowledge(lake, names, at=at)
    return (
        f"{', '.join(names)}: restarts up to {at:%Y-%m-%d %H:%M:%S} UTC are acknowledged. Only those after it count "
        "for the alert `restarts`."
    )


def _refuse_unknown(verb: str, lake: Lake, names: Sequence[str]) -> None:
    known = {name for desired in orders.all_desired(lake).values() for name in desired.pipelines}
    unknown = sorted(set(names) - known)
    if unknown:
        raise DefinitionError(
            f"{verb}: {unknown[0]} has not been deployed. Deployed: {', '.join(sorted(known)) or 'nothing'}. Nothing "
            "was changed."
        )
