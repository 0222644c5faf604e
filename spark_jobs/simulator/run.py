"""Runs a simulation: takes arrivals when they are due and hands them to a sink."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from spark_jobs.simulator.arrivals import Arrival, arrivals
from spark_jobs.simulator.clock import SYSTEM_CLOCK, Clock
from spark_jobs.simulator.errors import BadTarget
from spark_jobs.simulator.file_sink import FileSink
from spark_jobs.simulator.folders import OpenS3, open_folder
from spark_jobs.simulator.kafka_sink import KafkaSink, kafka_producer
from spark_jobs.simulator.malformed import FileFormat, kinds_for
from spark_jobs.simulator.pacing import Pacing
from spark_jobs.simulator.progress import Progress, StopReason, Tally
from spark_jobs.simulator.shop import Shop, run_stamp
from spark_jobs.simulator.streams import FORMATS
from spark_jobs.simulator.timeline import timeline

FILE_TICK_S = 0.9
KAFKA_TICK_S = 0.25
_CHECK_EVERY_ROWS = 256


class Sink(Protocol):
    """Takes rows in order of arrival."""

    def add(self, arrival: Arrival) -> None:
        """Takes a row; it may wait for others."""

    def flush(self) -> None:
        """Writes the rows that wait for a full file."""


def simulate_files(
    shop: Shop,
    *,
    out: str,
    rows: int | None = None,
    duration_s: float | None = None,
    rows_per_file: int = 1_000,
    format: FileFormat = "json",
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Callable[[Progress], None] | None = None,
    open_s3: OpenS3 | None = None,
) -> Progress:
    """Writes a shop's streams as files to `<out>/<stream>/`, and the truth to `<out>/_truth/<stream>.jsonl`.

    A file appears whole or not at all, and never replaces one of an earlier run. With `rows` and no `rate`
    the files are cut by rows alone, so their content is the same each time; else every stream that has rows
    gets a file at least once a second. In an object store the truth is in numbered objects
    `_truth/<stream>.jsonl/<number>.jsonl`.

    Args:
        shop: what to simulate.
        out: a local folder or `s3://bucket/prefix`.
        rows: end after so many rows over all streams, second copies included; what is then still on its way
            arrives at once. None: no limit.
        duration_s: end after so many seconds of the clock. None: no limit.
        rows_per_file: at most so many rows a file.
        format: json (lines), csv (with a header) or parquet.
        stop: set it to end; what has arrived is written.
        clock: paces the events and dates the start.
        on_progress: called about once a second, and at the end.
        open_s3: makes the store behind `s3://…`; see `open_folder`.

    Returns:
        What was emitted, and why it ended.

    Raises:
        BadTarget: if `out` cannot be used.
    """
    _check_limits(rows, duration_s, ("rows_per_file", rows_per_file))
    start_ms, tally = shop.start_ms(clock.now_ms()), Tally()
    sink = FileSink(
        open_folder(out, open_s3),
        streams=shop.streams,
        stamp=run_stamp(shop.seed, start_ms),
        file_format=format,
        rows_per_file=rows_per_file,
        tally=tally,
    )
    pacing = Pacing(shop, start_ms, clock, tick_s=FILE_TICK_S, duration_s=duration_s, stop=stop)
    rows_alone = rows is not None and shop.rate is None
    return _run(_arrivals(shop, start_ms, format, rows), sink, tally, pacing, on_progress, flush_often=not rows_alone)


def simulate_kafka(
    shop: Shop,
    *,
    bootstrap_servers: str,
    topic_prefix: str = "",
    truth: Path | None = None,
    rows: int | None = None,
    duration_s: float | None = None,
    batch_rows: int = 1_000,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Callable[[Progress], None] | None = None,
    producer_config: Mapping[str, str] | None = None,
) -> Progress:
    """Sends a shop's streams to Kafka as JSON: topics `<topic_prefix><stream>`, keyed by the entity id.

    Args:
        shop: what to simulate.
        bootstrap_servers: `host:port`, several with commas.
        topic_prefix: put in front of the stream's name as it is, with its own separator: "shop.".
        truth: local folder for the truth, `<stream>.jsonl`; None: no truth.
        rows: as for `simulate_files`.
        duration_s: as for `simulate_files`.
        batch_rows: rows that are sent, and acknowledged, together.
        stop: set it to end; what has arrived is sent.
        clock: paces the events and dates the start.
        on_progress: called at each batch that is due, and at the end.
        producer_config: more settings of librdkafka.

    Returns:
        What was acknowledged, and why it ended.

    Raises:
        DeliveryFailed: if Kafka refused a message or did not answer.
    """
    _check_limits(rows, duration_s, ("batch_rows", batch_rows))
    start_ms, tally = shop.start_ms(clock.now_ms()), Tally()
    sink = KafkaSink(
        kafka_producer(bootstrap_servers, producer_config),
        topic_prefix=topic_prefix,
        run=run_stamp(shop.seed, start_ms),
        truth=truth,
        batch_rows=batch_rows,
        tally=tally,
    )
    pacing = Pacing(shop, start_ms, clock, tick_s=KAFKA_TICK_S, duration_s=duration_s, stop=stop)
    return _run(_arrivals(shop, start_ms, "json", rows), sink, tally, pacing, on_progress, flush_often=True)


def _arrivals(shop: Shop, start_ms: int, file_format: FileFormat, rows: int | None) -> Iterator[Arrival]:
    return arrivals(
        timeline(shop, start_ms),
        shop.disorder,
        dice={stream: shop.dice(f"{stream}/arrival") for stream in shop.streams},
        kinds={stream: kinds_for(FORMATS[stream], file_format) for stream in shop.streams},
        rows=rows,
    )


def _run(
    rows: Iterator[Arrival],
    sink: Sink,
    tally: Tally,
    pacing: Pacing,
    on_progress: Callable[[Progress], None] | None,
    *,
    flush_often: bool,
) -> Progress:
    def report(ended_by: StopReason | None) -> Progress:
        progress = tally.progress(elapsed_s=pacing.elapsed_s(), caught_up=pacing.caught_up, ended_by=ended_by)
        if on_progress is not None:
            on_progress(progress)
        return progress

    ended_by: StopReason | None = None
    for number, row in enumerate(rows):
        while ended_by is None and not pacing.is_due(row):
            sink.flush()
            report(None)
            pacing.wait_a_tick()
            ended_by = pacing.ended_by()
            if ended_by is not None:
                pacing.freeze()  # what came during the last wait has arrived
        if ended_by is not None and not pacing.is_due(row):
            break
        if ended_by is None and number % _CHECK_EVERY_ROWS == 0:
            ended_by = pacing.ended_by()
            if ended_by is not None:
                break
            if pacing.tick_has_passed():
                if flush_often:
                    sink.flush()
                report(None)
        sink.add(row)
    sink.flush()
    return report(ended_by or "rows")


def _check_limits(rows: int | None, duration_s: float | None, size: tuple[str, int]) -> None:
    for name, value, least in (("rows", rows, 0), ("duration_s", duration_s, 0), (*size, 1)):
        if value is not None and value < least:
            raise BadTarget(f"{name}: expected at least {least}, got {value!r}; nothing was written")
