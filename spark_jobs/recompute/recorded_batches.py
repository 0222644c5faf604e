"""In which batch a stream has read each event, from its ledger and the logs of its sources."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs.lake.checkpoints.epochs import starts_of
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import Place, place
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.plan.columns import BATCH, CLOSED, INGEST_SEQ
from spark_jobs.recompute.lookup_versions import after_snapshot, numbers_between
from spark_jobs.recompute.target import Target

NEVER_US = 2**62
"""Microseconds since 1970, later than every event."""


@dataclass(frozen=True)
class Batches:
    """The batches that have read a table.

    `_ingest_seq` grows from commit to commit, and each file of a commit has numbers of its own: so a number tells the
    batch.

    Attributes:
        first: the least number of each part that a batch has read, in ascending order.
        batch: the batch of each part.
        closed_us: the watermark up to which windows were closed before it, in microseconds.
    """

    first: tuple[int, ...]
    batch: tuple[int, ...]
    closed_us: tuple[int, ...]

    def of(self, numbers: tuple[int, int] | None) -> tuple[int, int]:
        """The batches that have read some events.

        Args:
            numbers: least and greatest `_ingest_seq` of the events; None: any.

        Returns:
            The watermark before the first of the batches, in microseconds, and the number of the last.
        """
        low, high = numbers or (0, NEVER_US)
        parts = slice(max(bisect_right(self.first, low) - 1, 0), bisect_right(self.first, high))
        return min(self.closed_us[parts], default=NEVER_US), max(self.batch[parts], default=-1)

    def end_of(self, batch: int) -> int:
        """The `_ingest_seq` before which all events lie that a batch and those before it have read."""
        last = max((index for index, each in enumerate(self.batch) if each <= batch), default=None)
        if last is None:
            return -1
        return self.first[last + 1] if last + 1 < len(self.first) else NEVER_US

    def added_to(self, events: DataFrame) -> DataFrame:
        """The events with `BATCH` and `CLOSED`."""
        schema = StructType([*events.schema.fields, StructField(BATCH, LongType()), StructField(CLOSED, LongType())])
        first, columns = self.first, {BATCH: self.batch, CLOSED: self.closed_us}

        def add(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:
                found = [bisect_right(first, seq) - 1 for seq in part.column(INGEST_SEQ).to_pylist()]
                more = [pa.array([values[index] for index in found], pa.int64()) for values in columns.values()]
                yield pa.RecordBatch.from_arrays([*part.columns, *more], [*part.schema.names, *columns])

        return events.mapInArrow(add, schema)


def batches_of(target: Target, table: str) -> Batches:
    """The batches of a pipeline's epoch, as they have read a source table.

    Raises:
        BackfillRefusedError: if the table's log does not tell any more.
    """
    starts = starts_of(target.lake, target.epoch)
    before = (starts.versions.get(table, 0) if starts else 0, -1)
    ends: list[tuple[Place, int, int]] = []
    offsets: list[str] = []
    for batch_id, entry in ledger_rows(target.lake, target.result, target.name, target.epoch.number):
        read = (offset for source, offset in entry.sources.items() if table_read(source, target.pipeline) == table)
        offset = next(read, "")
        if entry.kind != "batch" or not offset:
            continue
        offsets.append(offset)
        ends.append((place(offset), batch_id, entry.late_watermark_ms * 1000))
    parts: list[tuple[int, int, int]] = []
    number = 0
    if starts is not None and table in starts.snapshots and ends:
        before = after_snapshot(target, table, ends[0][0], offsets)
        # Its first batch has read all that the table held.
        parts.append((0, *ends[0][1:]))
    last = max((upto[0] if upto[1] >= 0 else upto[0] - 1 for upto, _, _ in ends), default=before[0] - 1)
    for version, files in numbers_between(target, table, before[0], last):
        for index, numbers in enumerate(files):
            while number < len(ends) and ends[number][0] < (version, index):
                number += 1
            # It may stand in the middle of the last version.
            if numbers and before < (version, index) and number < len(ends):
                parts.append((numbers[0], *ends[number][1:]))
    parts.sort()
    return Batches(*(tuple(part[field] for part in parts) for field in range(3)))
