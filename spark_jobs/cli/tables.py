"""`tidemark tables`: what is in the lake."""

from spark_jobs.cli.definitions import end_with, registered
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import LakeUnavailableError


def tables(lake: LakeOption = None) -> None:
    """List the tables of the lake: rows, size, newest event, watermark, share of late events."""
    from spark_jobs.console import reports
    from spark_jobs.lake.checkpoints.ran import that_have_run
    from spark_jobs.lake.tables import inventory

    where = lake_of(lake)
    ran = that_have_run(where, registered())
    summaries = inventory.summaries(where, {each.name: each for each in ran.definitions})
    if not summaries:
        out.print(f"{where.uri} has no tables yet. Fill it: {command('run', 'ingest_sales')}")
        return
    reports.print_summaries(out, summaries)
    unreadable = [summary.unreadable for summary in summaries if summary.unreadable]
    if unreadable:
        raise LakeUnavailableError("\n       ".join(unreadable))
    end_with(ran.unreadable)
