"""`tidemark supervise`, `drive` and `submit`: the processes that run streams."""

import logging
import os
import sys
from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.signals import two_signals
from spark_jobs.cli.terminal import out
from spark_jobs.lake.settings import Settings
from spark_jobs.pipelines import registered_readers

log = logging.getLogger("tidemark.driver")


def supervise(
    lake: LakeOption = None,
    master: Annotated[
        str | None,
        typer.Option(help="spark://host:port for a standalone cluster. [default: TIDEMARK_MASTER, or this machine]"),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serves metrics; drivers take the next ports. 0: none. [default: 9463]")
    ] = None,
) -> None:
    """Keep what runs equal to what is deployed: start drivers, restart them, drain them. Ctrl-C has the drivers
    finish their batches and end; pressed twice it does not wait until they have."""
    from spark_jobs.console import streams

    _log_to_stderr()
    if master is not None:
        os.environ["TIDEMARK_MASTER"] = master
    if metrics_port is not None:
        os.environ["TIDEMARK_METRICS_PORT"] = str(metrics_port)
    with two_signals() as (end, leave):
        streams.supervise(lake_of(lake).ensure_exists(), Settings(), end=end, leave=leave)


def drive(
    job: str,
    term: Annotated[int, typer.Option()],
    lake: LakeOption = None,
) -> None:
    """Drive a job; started by the supervisor."""
    from spark_jobs.job.process import drive as drive_job

    _log_to_stderr()
    # A file that is being edited is no reason for what was deployed to end.
    readers = registered_readers(lambda told: log.warning("left out of the heartbeats: %s", told))
    log_file = os.environ.get("TIDEMARK_LOG_FILE")
    with two_signals() as (end, _):
        drive_job(lake_of(lake), job, term, stop=end, readers=readers, log_file=log_file)


def submit(
    context: typer.Context,
    master: Annotated[str | None, typer.Option(help="spark://host:port. [default: TIDEMARK_MASTER]")] = None,
) -> None:
    """Run one finite command where drivers run, such as: tidemark submit run top_products --until-caught-up"""
    from spark_jobs.console import streams

    if master is not None:
        os.environ["TIDEMARK_MASTER"] = master
    raise typer.Exit(streams.submit(out, Settings(), tuple(context.args)))


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    for noisy in ("py4j", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
