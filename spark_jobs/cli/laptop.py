"""`tidemark up` and `down`: everything on this machine."""

from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import err, out


def up(
    lake: LakeOption = None,
    began: Annotated[float | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start Airflow, a supervisor and a simulated shop on this machine, and deploy the demonstration."""
    from spark_jobs.console import laptop

    raise typer.Exit(laptop.up(out, err, lake_of(lake), began=began))


def down(lake: LakeOption = None) -> None:
    """End what `tidemark up` has started; streams finish their batches."""
    from spark_jobs.console import laptop

    raise typer.Exit(laptop.down(out, lake_of(lake)))
