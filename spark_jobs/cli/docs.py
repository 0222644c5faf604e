"""`tidemark docs`: pages about tables."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import registered, resolved
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out


def docs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that are registered]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
) -> None:
    """Write a page for each table into the lake (`_docs/`): columns, their origin, expectations and results."""
    from spark_jobs.documentation.publishing import publish_all

    where = lake_of(lake)
    known = {each.name: each for each in registered()}
    chosen = resolved(names) if names else tuple(known.values())
    address = publish_all(where, chosen, known)
    out.print(f"pages of {len(chosen)} pipelines: {address}", highlight=False, markup=False, soft_wrap=True)
