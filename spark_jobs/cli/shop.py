"""`tidemark simulate` and `tidemark demo`: the simulated shop."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from spark_jobs.cli.definitions import warn_of_problems
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import err, out
from spark_jobs.pipelines import resolve


def simulate(
    lake: LakeOption = None,
    to: Annotated[
        str | None, typer.Option(help="Folder, s3://… or kafka://host:port/. [default: landing/ in the lake]")
    ] = None,
    streams: Annotated[str, typer.Option(help="Which streams, with commas.")] = "sales,products,clicks,visits,payments",
    rate: Annotated[
        float | None, typer.Option(help="Events a second of the clock. [default: as fast as possible]")
    ] = None,
    speed: Annotated[float, typer.Option(help="Seconds of event time a second of the clock, with --rate.")] = 60.0,
    start: Annotated[datetime | None, typer.Option(help="First event time, UTC. [default: a day ago]")] = None,
    rows: Annotated[int | None, typer.Option(help="End after so many rows.")] = None,
    seconds: Annotated[float | None, typer.Option(help="End after so many seconds.")] = None,
    rows_per_file: Annotated[int, typer.Option(help="At most so many rows a file.")] = 1000,
    file_format: Annotated[str, typer.Option("--format", help="json, csv or parquet.")] = "json",
    seed: Annotated[int, typer.Option(help="The same seed and start give the same events.")] = 42,
    disorder: Annotated[float, typer.Option(help="Share of events out of order by seconds.")] = 0.2,
    late_share: Annotated[
        float, typer.Option("--late", help="Share of events that arrive 10 minutes to 2 hours late.")
    ] = 0.005,
    duplicates: Annotated[float, typer.Option(help="Share of events sent twice.")] = 0.01,
    malformed: Annotated[float, typer.Option(help="Share of rows that cannot be parsed.")] = 0.002,
    future: Annotated[float, typer.Option(help="Share of events that claim a time days ahead.")] = 0.0005,
) -> None:
    """Emit the events of a seeded shop, as files or to Kafka, as disordered as you like; record what was done."""
    from spark_jobs.console.simulating import simulate_shop

    where = lake_of(lake)
    with interruptible() as stop:
        simulate_shop(
            out,
            to=to or where.path("landing").replace("s3a://", "s3://", 1),
            shop={
                "seed": seed,
                "streams": tuple(streams.split(",")),
                "start": start.replace(tzinfo=UTC) if start else None,
                "speed": speed,
                "rate": rate,
            },
            disorder={
                "disorder": disorder,
                "late": late_share,
                "duplicates": duplicates,
                "malformed": malformed,
                "future": future,
            },
            rows=100_000 if (rows, seconds, rate) == (None, None, None) else rows,
            seconds=seconds,
            rows_per_file=rows_per_file,
            file_format=file_format,
            stop=stop,
        )


def demo(
    lake: LakeOption = None,
    seconds: Annotated[float, typer.Option(help="How long it runs.")] = 120.0,
) -> None:
    """Watch a simulated shop: pipelines live for two minutes, then results, late events and the ledger."""
    from spark_jobs.console.demo import PIPELINES, demonstrate
    from spark_jobs.operations.run.plan import plan_run

    where = lake_of(lake).ensure_exists()
    warn_of_problems()
    plan_run(where, resolve(PIPELINES))
    with interruptible() as stop:
        raise typer.Exit(demonstrate(out, err, where, seconds=seconds, stop=stop))
