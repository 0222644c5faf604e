"""`tidemark tables`: what is in the lake."""

from spark_jobs.cli.definitions import warn_of_problems
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.pipelines import registry


def tables(lake: LakeOption = None) -> None:
    """List the tables of the lake: rows, size, newest event, watermark, share of late events."""
    from spark_jobs.console import reports
    from spark_jobs.lake.tables import inventory

    warn_of_problems()
    summaries = inventory.summaries(lake_of(lake), registry())
    if not summaries:
        out.print(f"{lake_of(lake).uri} has no tables yet. Fill it: tidemark run ingest_sales")
        return
    reports.print_summaries(out, summaries)
    unreadable = [summary.unreadable for summary in summaries if summary.unreadable]
    if unreadable:
        raise LakeUnavailableError("\n       ".join(unreadable))
