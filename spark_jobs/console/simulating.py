"""Runs the simulator from the command line, with a count of what it emits."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console

from spark_jobs.lake.inputs.kafka import check_credentials, client_options
from spark_jobs.lake.store.s3 import s3_store
from spark_jobs.simulator import Disorder, FileFormat, Progress, Shop, SimulatorError, simulate_files, simulate_kafka
from spark_jobs.spec import DefinitionError


def simulate_shop(
    out: Console,
    *,
    to: str,
    shop: Mapping[str, Any],
    disorder: Mapping[str, Any],
    rows: int | None,
    seconds: float | None,
    rows_per_file: int,
    file_format: str,
    stop: threading.Event,
) -> None:
    """Emits events until a limit or Ctrl-C, and tells what they were.

    Raises:
        DefinitionError: for an option that makes no sense, or a target that cannot be used.
        KafkaSettingsError: if Kafka refuses the credentials of the environment.
    """
    if file_format not in get_args(FileFormat):
        raise DefinitionError(
            f"--format: expected {', '.join(get_args(FileFormat))}, got {file_format!r}. Nothing was written."
        )
    try:
        config = Shop(**shop, disorder=Disorder(**disorder))
        with out.status("") as status:
            limits: dict[str, Any] = {
                "rows": rows,
                "duration_s": seconds,
                "stop": stop,
                "on_progress": lambda done: status.update(_line(done)),
            }
            if to.startswith("kafka://"):
                servers, _, prefix = to.removeprefix("kafka://").partition("/")
                check_credentials(servers)
                done = simulate_kafka(
                    config,
                    bootstrap_servers=servers,
                    topic_prefix=prefix,
                    truth=Path("kafka_truth"),
                    producer_config=client_options(servers),
                    **limits,
                )
            else:
                done = simulate_files(
                    config,
                    out=to,
                    rows_per_file=rows_per_file,
                    format=file_format,  # type: ignore[arg-type]
                    open_s3=s3_store,
                    **limits,
                )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DefinitionError(f"simulate: {place}: {first['msg']}, got {first['input']!r}") from None
    except SimulatorError as error:
        raise DefinitionError(f"simulate: {error}") from error
    out.print(f"{_line(done)} to {to}")


def _line(done: Progress) -> str:
    streams = ", ".join(f"{name} {count:,}" for name, count in done.by_stream)
    return (
        f"{done.rows:,} rows ({streams}): {done.disordered:,} out of order, {done.late:,} late, {done.duplicates:,} "
        f"twice, {done.malformed:,} malformed, {done.future:,} in the future; event time {done.newest_event_time}"
    )
