"""The driver's figures in Prometheus' text format, on a port of the driver."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jobs.control.monitoring.health import STALE
from spark_jobs.control.supervision.pulse import PipelinePulse, Pulse

_PORTS_TRIED = 20

Value = Callable[[PipelinePulse], float | int | None]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _instant(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _up(seen: PipelinePulse) -> int | None:
    return None if seen.state in ("stopping", "stopped") else int(seen.state == "running")


def _down(seen: PipelinePulse) -> int | None:
    """Where Spark hangs, whatever the driver thinks that a pipeline does."""
    return None if _up(seen) is None else 0


_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("pipeline_up", "1 where the pipeline runs, 0 where it should.", _up),
    (
        "last_progress_timestamp_seconds",
        "When a batch ended or nothing was left to read.",
        lambda p: _instant(p.progressed_at),
    ),
    ("input_rows_per_second", "Events read, last ten minutes.", lambda p: p.figures.input_rows_per_s),
    ("processed_rows_per_second", "Events a second of batch time.", lambda p: p.figures.processed_rows_per_s),
    ("processing_latency_seconds", "From bronze to the result.", lambda p: _seconds(p.figures.latency_ms)),
    ("watermark_timestamp_seconds", "Results up to here are final.", lambda p: _seconds(p.figures.watermark_ms)),
    ("state_rows", "Groups in state.", lambda p: p.figures.state_rows),
    ("left_state_rows", "Of a join, events of its own side in state.", lambda p: p.figures.left_state_rows),
    ("right_state_rows", "Of a join, events of the other side in state.", lambda p: p.figures.right_state_rows),
    ("state_bytes", "Memory of the state.", lambda p: p.figures.state_bytes),
    ("checkpoint_duration_seconds", "Checkpointing in the newest batch.", lambda p: _seconds(p.figures.checkpoint_ms)),
    ("checkpoint_bytes", "All files of the checkpoint.", lambda p: p.figures.checkpoint_bytes),
    ("offsets_behind", "Rows, messages or files not read yet.", lambda p: p.figures.rows_behind),
    ("seconds_behind", "Age of the oldest of them.", lambda p: _seconds(p.figures.behind_ms)),
)
_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("events", "Events read by this driver.", lambda p: p.figures.read),
    ("late_events", "Of these, late for a window or more.", lambda p: p.figures.late),
    ("quarantined_events", "Of these, set aside.", lambda p: p.figures.quarantined),
    ("batches", "Batches of this driver.", lambda p: p.figures.batches),
    ("failures", "Failures within the last hour.", lambda p: len(p.failures)),
)
_LABELS = ("job", "pipeline")


class PulseCollector(Collector):
    """Gives what the newest pulse says; a scrape measures nothing.

    Args:
        newest: the newest pulse; None before the first.
    """

    def __init__(self, newest: Callable[[], Pulse | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterator[Metric]:
        """One family for each figure, one sample for each pipeline that has it."""
        pulse = self._newest()
        if pulse is None:
            return
        hangs = pulse.spark_silent_s > STALE.total_seconds()
        for name, help_text, measured in _GAUGES:
            value = _down if hangs and measured is _up else measured
            yield _filled(GaugeMetricFamily(f"tidemark_{name}", help_text, labels=_LABELS), pulse, value)
        for name, help_text, value in _COUNTERS:
            yield _filled(CounterMetricFamily(f"tidemark_{name}", help_text, labels=_LABELS), pulse, value)
        duration = GaugeMetricFamily(
            "tidemark_batch_duration_seconds", "Newest batch, by phase; all: the whole.", labels=(*_LABELS, "phase")
        )
        for pipeline, seen in pulse.pipelines.items():
            if seen.figures.batch_ms is not None:
                duration.add_metric((pulse.job, pipeline, "all"), seen.figures.batch_ms / 1000)
            for phase, ms in seen.figures.phases_ms.items():
                duration.add_metric((pulse.job, pipeline, phase), ms / 1000)
        yield duration


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, pulse: Pulse, value: Value
) -> GaugeMetricFamily | CounterMetricFamily:
    for pipeline, seen in pulse.pipelines.items():
        found = value(seen)
        if found is not None:
            family.add_metric((pulse.job, pipeline), found)
    return family


def serve(collector: Collector, *, first_port: int, address: str) -> int | None:
    """Serves metrics on the first free port.

    Args:
        collector: gives them.
        first_port: tried first, then those above it.
        address: on which to listen.

    Returns:
        The port; None where none of twenty was free: the pulse goes on without.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    for port in range(first_port, first_port + _PORTS_TRIED):
        with contextlib.suppress(OSError):
            start_http_server(port, addr=address, registry=registry)
            return port
    return None
