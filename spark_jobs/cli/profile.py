"""`tidemark profile`: expectations from data."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import registered
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out


def profile(
    table: Annotated[str, typer.Argument(help="Such as gold.top_products.", metavar="TABLE")],
    lake: LakeOption = None,
) -> None:
    """Show what the columns of a table are like, and propose expectations as lines to paste."""
    from spark_jobs.console.profiling import print_profile
    from spark_jobs.lake.checkpoints.ran import that_have_run
    from spark_jobs.plan import logical
    from spark_jobs.plan.personal import PersonalColumns
    from spark_jobs.quality.profiling import profile as profiled

    where = lake_of(lake)
    # What is personal may be declared in a file that is not registered.
    known = {each.name: each for each in (*that_have_run(where, registered()).all_or_none(), *registered())}.values()
    definition = next((each for each in known if each.sink.table == table), None)
    keys = [ref.keys for ref in logical.build(definition).tables if ref.name == table] if definition else []
    if definition is not None and getattr(definition, "event_id", None):
        keys = [(definition.event_id,), *keys]  # type: ignore[union-attr, list-item]
    personal = PersonalColumns(tuple(known)).of(table)
    found = profiled(where, table, event_time=definition.event_time if definition else None, keys=keys)
    print_profile(out, found, definition, personal)
