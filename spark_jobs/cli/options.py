"""Options and arguments that commands share, each declared once, and what they say."""

from datetime import timedelta
from typing import Annotated

import typer

from spark_jobs.lake import Lake
from spark_jobs.lake.commands import typed_lake
from spark_jobs.lake.settings import Settings
from spark_jobs.spec import DefinitionError
from spark_jobs.spec.durations import parse_duration


def _noted(lake: str | None) -> str | None:
    """Commands that are suggested from here on say it, too."""
    typed_lake(lake)
    return lake


LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        callback=_noted,
        help="Folder or s3a://bucket/prefix. [default: TIDEMARK_LAKE, or ./lake]",
        show_default=False,
    ),
]
SourceOption = Annotated[
    str | None, typer.Option("--from", help="Where the ingest reads: a folder, s3a://…, or kafka://host:port/topic.")
]
WithSourcesOption = Annotated[
    bool, typer.Option("--with-sources", help="Also the ingests that fill the tables these pipelines read.")
]
PipelineArgument = Annotated[str, typer.Argument(help="Registered name, or path of a pipeline file.")]
PipelinesArgument = Annotated[
    list[str], typer.Argument(help="Registered names, or paths of pipeline files.", metavar="PIPELINE...")
]
DeployedArgument = Annotated[list[str], typer.Argument(help="Names of deployed pipelines.", metavar="PIPELINE...")]


def lake_of(text: str | None) -> Lake:
    """The lake that `--lake` names, or else the environment.

    Raises:
        LakeUnavailableError: if it is no address of a lake.
    """
    return Lake.parse(Settings().lake if text is None else text)


def duration(option: str, text: str) -> timedelta:
    """What an option says; asked for before anything is done.

    Raises:
        DefinitionError: if it is no duration.
    """
    try:
        return parse_duration(text)
    except ValueError as error:
        raise DefinitionError(f"{option}: {error}. Nothing was changed.") from None
