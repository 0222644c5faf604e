"""Millions of sales at once, as Parquet, for benchmarks."""

import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.simulator.bulk_columns import ARRIVAL_CLASSES, SalesColumns, truth_table
from spark_jobs.simulator.clock import SYSTEM_CLOCK, Clock
from spark_jobs.simulator.disorder import Disorder
from spark_jobs.simulator.durations import parse_duration, whole_ms
from spark_jobs.simulator.errors import BadTarget
from spark_jobs.simulator.file_sink import TRUTH_FOLDER, file_name, unused_run
from spark_jobs.simulator.folders import OpenS3, open_folder
from spark_jobs.simulator.progress import Progress, StopReason
from spark_jobs.simulator.shop import Shop, run_stamp
from spark_jobs.simulator.streams import instant

BLOCK_ROWS = 500_000
"""Rows are drawn in blocks of this size, whatever the size of the files: same seed, same rows."""

BULK_DISORDER = Disorder(disorder=0.2, late=0.005, duplicates=0, malformed=0, future=0)

_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Block:
    """Rows in order of arrival: their number in order of event time, their times, and their arrival class."""

    number: _Ints
    event_ms: _Ints
    arrival_ms: _Ints
    arrival: _Ints

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, which: "slice | np.ndarray[tuple[int], np.dtype[np.bool_]] | _Ints") -> "Block":
        return Block(self.number[which], self.event_ms[which], self.arrival_ms[which], self.arrival[which])

    def __add__(self, other: "Block") -> "Block":
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Block(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        return self.number, self.event_ms, self.arrival_ms, self.arrival


def bulk_sales(
    *,
    out: str,
    rows: int,
    rows_per_file: int = 1_000_000,
    extra_columns: int = 0,
    seed: int = 42,
    start: datetime | None = None,
    span: str | timedelta = "24 hours",
    disorder: Disorder = BULK_DISORDER,
    products: int = 100,
    truth: bool = True,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Callable[[Progress], None] | None = None,
    open_s3: OpenS3 | None = None,
) -> Progress:
    """Writes sales as Parquet to `<out>/sales/`, in order of arrival, and the truth to `<out>/_truth/sales/`.

    The rows have the columns of the stream `sales` and then `extra_01` …: in turn a whole number, a double
    and a short text. A truth file has the name of its data file and says of each row: index, row, sale_id,
    event_time, arrival_time, arrival, behind_ms (see `TruthRow`).

    Args:
        out: a local folder or `s3://bucket/prefix`.
        rows: how many.
        rows_per_file: rows of a file; the last has what is left.
        extra_columns: how many columns to add.
        seed: decides everything that is random; with `start` it decides the data alone.
        start: first instant of event time; None: 24 hours before now, rounded down to the hour.
        span: event time over which the rows are spread evenly.
        disorder: shares of events out of order and late. Of the others all must be 0.
        products: size of the catalogue.
        truth: write the truth.
        stop: set it to end before the next file.
        clock: dates the start.
        on_progress: called after each file.
        open_s3: makes the store behind `s3://…`; see `open_folder`.

    Returns:
        What was written, and why it ended.

    Raises:
        BadTarget: if an argument cannot be used.
    """
    if disorder.duplicates or disorder.malformed or disorder.future:
        raise BadTarget(
            f"disorder: expected duplicates, malformed and future to be 0 in bulk, got {disorder!r}; "
            "nothing was written. Set them to 0, or use simulate_files"
        )
    if rows < 0 or rows_per_file < 1 or extra_columns < 0:
        raise BadTarget(
            "bulk: expected rows >= 0, rows_per_file >= 1, extra_columns >= 0, got "
            f"{rows!r}, {rows_per_file!r}, {extra_columns!r}; nothing was written"
        )
    began_s, start_ms = clock.monotonic_s(), Shop(start=start).start_ms(clock.now_ms())
    folder = open_folder(out, open_s3)
    run = unused_run(folder, ("sales",), run_stamp(seed, start_ms))
    columns = SalesColumns(seed=seed, start_ms=start_ms, products=products, extra_columns=extra_columns)
    gap_ms = max(1, whole_ms(parse_duration(span))) / max(rows, 1)
    late = disordered = written = files = 0
    newest_ms: int | None = None
    ended_by: StopReason | None = None
    progress = Progress(ended_by="rows")
    for block in _files(_arriving(seed, start_ms, rows, gap_ms, disorder), rows_per_file):
        if stop is not None and stop.is_set():
            ended_by = "stop"
            break
        name = file_name("sales", run, files, "parquet")
        table = columns.table(block.number, block.event_ms)
        folder.write(f"sales/{name}", _parquet(table))
        newest_before = newest_ms
        newest_ms = max(int(block.event_ms.max()), newest_ms or 0)
        if truth:
            facts = truth_table(
                first_index=written,
                sale_id=table["sale_id"],
                event_ms=block.event_ms,
                arrival_ms=block.arrival_ms,
                arrival=block.arrival,
                newest_before_ms=newest_before,
            )
            folder.write(f"{TRUTH_FOLDER}/sales/{name}", _parquet(facts))
        files, written = files + 1, written + len(block)
        late += int((block.arrival == ARRIVAL_CLASSES.index("late")).sum())
        disordered += int((block.arrival == ARRIVAL_CLASSES.index("disordered")).sum())
        progress = Progress(
            rows=written,
            by_stream=(("sales", written),),
            files=files,
            disordered=disordered,
            late=late,
            newest_event_time=instant(newest_ms),
            elapsed_s=clock.monotonic_s() - began_s,
            ended_by="rows" if written == rows else None,
        )
        if on_progress is not None:
            on_progress(progress)
    return Progress(**{**progress.__dict__, "ended_by": ended_by}) if ended_by else progress


def _arriving(seed: int, start_ms: int, rows: int, gap_ms: float, disorder: Disorder) -> Iterator[Block]:
    """Blocks in order of arrival, cut where nothing of a later block can arrive earlier."""
    waiting: Block | None = None
    for first in range(0, rows, BLOCK_ROWS):
        drawn = _drawn(seed, start_ms, first, min(BLOCK_ROWS, rows - first), gap_ms, disorder)
        waiting = drawn if waiting is None else waiting + drawn
        next_block_ms = start_ms + int((first + BLOCK_ROWS) * gap_ms)
        is_last = first + BLOCK_ROWS >= rows
        arrived = waiting.arrival_ms < next_block_ms if not is_last else np.ones(len(waiting), dtype=np.bool_)
        block, waiting = waiting[arrived], waiting[~arrived]
        yield block[np.lexsort((block.number, block.arrival_ms))]


def _drawn(seed: int, start_ms: int, first: int, count: int, gap_ms: float, disorder: Disorder) -> Block:
    """Events `first` … in order of event time, and when each arrives."""
    draw = np.random.default_rng([seed, 1, first])
    number = np.arange(first, first + count, dtype=np.int64)
    event_ms = start_ms + ((number + draw.random(count)) * gap_ms).astype(np.int64)
    late, disordered = draw.random(count) < disorder.late, draw.random(count) < disorder.disorder
    after_ms, by_ms = whole_ms(disorder.late_after), whole_ms(disorder.late_by)
    shortest = np.where(late, after_ms, 0)
    longest = np.where(late, by_ms, np.where(disordered, whole_ms(disorder.max_disorder), 0))
    delay_ms = longest - (draw.random(count) * (longest - shortest)).astype(np.int64)
    arrival = np.where(late, 2, np.where(disordered, 1, 0)).astype(np.int64)
    return Block(number, event_ms, event_ms + delay_ms, arrival)


def _files(blocks: Iterator[Block], rows_per_file: int) -> Iterator[Block]:
    """The same rows in the same order, cut to the size of a file."""
    rest: Block | None = None
    for block in blocks:
        rest = block if rest is None else rest + block
        while len(rest) >= rows_per_file:
            yield rest[:rows_per_file]
            rest = rest[rows_per_file:]
    if rest is not None and len(rest):
        yield rest


def _parquet(table: pa.Table) -> bytes:
    target = io.BytesIO()
    texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    pq.write_table(table, target, use_dictionary=texts, write_statistics=True)
    return target.getvalue()
