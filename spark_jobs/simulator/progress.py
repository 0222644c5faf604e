"""How far a simulation is."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from spark_jobs.simulator.arrivals import Arrival
from spark_jobs.simulator.streams import StreamName, instant

StopReason = Literal["rows", "duration", "stop"]


@dataclass(frozen=True)
class Progress:
    """What has been emitted so far: in files that are there, in messages that are acknowledged.

    Attributes:
        rows: emitted rows, second copies and malformed ones included.
        by_stream: the same per stream.
        files: files written, or batches acknowledged by Kafka.
        disordered: rows of each kind; a row can be of several.
        late: see `disordered`.
        duplicates: see `disordered`; second copies only.
        malformed: see `disordered`.
        future: see `disordered`.
        newest_event_time: newest true event time; None before the first row.
        elapsed_s: seconds since the start.
        caught_up: event time has reached the clock; from here on it advances no faster.
        ended_by: why the simulation ended; None while it runs.
    """

    rows: int = 0
    by_stream: tuple[tuple[StreamName, int], ...] = ()
    files: int = 0
    disordered: int = 0
    late: int = 0
    duplicates: int = 0
    malformed: int = 0
    future: int = 0
    newest_event_time: datetime | None = None
    elapsed_s: float = 0.0
    caught_up: bool = False
    ended_by: StopReason | None = None


class Tally:
    """Counts what a sink has emitted."""

    def __init__(self) -> None:
        self._streams: Counter[StreamName] = Counter()
        self._kinds: Counter[str] = Counter()
        self._newest_ms: int | None = None
        self._files = 0

    def add_file(self, rows: list[Arrival]) -> None:
        """Counts one file or acknowledged batch."""
        self._files += 1
        for row in rows:
            self._streams[row.event.stream] += 1
            self._kinds[row.arrival] += 1
            self._kinds["duplicates"] += row.original is not None
            self._kinds["malformed"] += row.malformed is not None
            self._kinds["future"] += row.future
        newest_ms = max((row.event.event_time_ms for row in rows), default=None)
        if newest_ms is not None:
            self._newest_ms = newest_ms if self._newest_ms is None else max(self._newest_ms, newest_ms)

    def progress(self, *, elapsed_s: float, caught_up: bool, ended_by: StopReason | None) -> Progress:
        """The counts as a value."""
        return Progress(
            rows=self._streams.total(),
            by_stream=tuple(sorted(self._streams.items())),
            files=self._files,
            disordered=self._kinds["disordered"],
            late=self._kinds["late"],
            duplicates=self._kinds["duplicates"],
            malformed=self._kinds["malformed"],
            future=self._kinds["future"],
            newest_event_time=None if self._newest_ms is None else instant(self._newest_ms),
            elapsed_s=elapsed_s,
            caught_up=caught_up,
            ended_by=ended_by,
        )
