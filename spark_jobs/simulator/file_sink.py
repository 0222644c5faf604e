"""Streams as files: one folder per stream, the truth beside them."""

import re

from spark_jobs.simulator.arrivals import Arrival
from spark_jobs.simulator.encode import encoded
from spark_jobs.simulator.folders import Folder
from spark_jobs.simulator.malformed import FileFormat
from spark_jobs.simulator.progress import Tally
from spark_jobs.simulator.streams import StreamName
from spark_jobs.simulator.truth import truth_line, truth_lines

TRUTH_FOLDER = "_truth"


class FileSink:
    """Writes `<stream>/<stream>-<run>-<number>.<format>`; names sort in the order of arrival.

    Args:
        folder: where to.
        streams: the streams that will come.
        stamp: names the run by its start and seed; a number is added that no earlier run in the folder has.
        file_format: json, csv or parquet.
        rows_per_file: a file is written once it has so many rows, or at a flush.
        tally: counts what was written.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        streams: tuple[StreamName, ...],
        stamp: str,
        file_format: FileFormat,
        rows_per_file: int,
        tally: Tally,
    ) -> None:
        self._folder, self._format, self._rows_per_file, self._tally = (
            folder,
            file_format,
            rows_per_file,
            tally,
        )
        self.run = unused_run(folder, streams, stamp)
        self._waiting: dict[StreamName, list[Arrival]] = {stream: [] for stream in streams}
        self._written = dict.fromkeys(streams, 0)

    def add(self, arrival: Arrival) -> None:
        """Takes a row; writes a file when it is full."""
        waiting = self._waiting[arrival.event.stream]
        waiting.append(arrival)
        if len(waiting) >= self._rows_per_file:
            self._write(arrival.event.stream)

    def flush(self) -> None:
        """Writes what waits, a file per stream."""
        for stream, waiting in self._waiting.items():
            if waiting:
                self._write(stream)

    def _write(self, stream: StreamName) -> None:
        rows = self._waiting[stream]
        name = file_name(stream, self.run, self._written[stream], self._format)
        self._folder.write(f"{stream}/{name}", encoded(stream, rows, self._format))
        truth = [truth_line(row, run=self.run, file=name, row=place) for place, row in enumerate(rows)]
        self._folder.append(f"{TRUTH_FOLDER}/{stream}.jsonl", truth_lines(truth))
        self._written[stream] += 1
        self._waiting[stream] = []
        self._tally.add_file(rows)


def file_name(stream: StreamName, run: str, number: int, extension: str) -> str:
    """A file's name; those of a run sort by their number."""
    return f"{stream}-{run}-{number:08d}.{extension}"


def unused_run(folder: Folder, streams: tuple[StreamName, ...], stamp: str) -> str:
    """The stamp with a number that no file in the streams' folders has yet: `20240501T000000-s42-r001`."""
    pattern = re.compile(rf"-{re.escape(stamp)}-r(\d+)-")
    used = [
        int(found.group(1)) for stream in streams for name in folder.names(stream) if (found := pattern.search(name))
    ]
    return f"{stamp}-r{max(used, default=0) + 1:03d}"
