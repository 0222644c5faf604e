"""Fetches the rows of a small batch in the one job that judges them; all else about them needs no Spark.

Another job of Spark's, such as to number rows that are kept in its memory, takes as long as a small batch itself.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from hashlib import md5
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.engine.sources.base import Batch, BatchRows
from spark_jobs.engine.sources.judging import Judge
from spark_jobs.engine.sources.places import BLOCK, ORDER
from spark_jobs.plan.quarantine import UNREADABLE
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.frames import fetch
from spark_jobs.spec.processors import instant_of
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import DETAIL, RAW, REASON
from spark_jobs.transforms.shape import unknown_names

_COUNTED, _HASH, _BYTES, _SIZE = "__counted_", "__hash", "__bytes", "__size"
_LEAST, _MOST = "__least", "__most"
_LOW_BITS = 0xFFFFFFFF
_GROUP = (NAME, BLOCK, REASON)


class Fetching:
    """Fetches the rows of batches: its columns are built once.

    Args:
        judge: of the batches.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def read(self, raw: DataFrame) -> "FetchedRead":
        """Judges the lines of a batch, and fetches them.

        Args:
            raw: few.
        """
        return FetchedRead(self._judge, self._judge.judged(raw.coalesce(1)), self._columns)

    @cached_property
    def _columns(self) -> list[Column]:
        """What is fetched of each row."""
        definition, is_bad = self._judge.definition, F.col(REASON).isNotNull()
        event_id = [column(definition.event_id).cast("string").alias("_event_id")] if definition.event_id else []
        names = unknown_names(definition)
        return [
            *columns_of((*definition.payload, "_ingest_time", NAME, BLOCK, ORDER, REASON, DETAIL, _SIZE)),
            *event_id,
            # Readers of a table refuse text that is not UTF-8; of a good row the text is not needed any more.
            F.when(is_bad, F.make_valid_utf8(RAW)).alias(RAW),
            (F.octet_length(RAW) + 1).cast("bigint").alias(_BYTES),
            F.xxhash64(NAME, RAW).alias(_HASH),
            *(
                F.when(found.isNotNull(), True).alias(f"{_COUNTED}{name}")
                for name, found in self._judge.counted_of_good.items()
            ),
            F.array_min(names).alias(_LEAST),
            F.array_max(names).alias(_MOST),
        ]


class FetchedRead:
    """The rows of a batch, judged and fetched.

    Args:
        judge: of the batch.
        judged: its rows, in one partition; they are read again where somebody asks for them.
        columns: what is fetched of them.

    Attributes:
        judge: of the batch.
        judged: its rows.
        rows: what its tables have of them, in order, and what is counted.
    """

    def __init__(self, judge: Judge, judged: DataFrame, columns: Sequence[Column]) -> None:
        self.judge, self.judged = judge, judged
        self.rows: pa.Table = fetch(judged.select(*columns)).combine_chunks()

    @cached_property
    def counted(self) -> list[Mapping[str, Any]]:
        """Groups of the rows by file, piece of it and reason, as `Judge.counted` gives them."""
        if not self.rows.num_rows:
            return []
        group = self.group_of_each
        order = np.argsort(group, kind="stable")
        firsts = np.searchsorted(group[order], np.arange(group.max() + 1))
        ends = np.append(firsts[1:], len(order))

        def of(name: str, reduced: np.ufunc) -> list[int]:
            values = self.rows[name].to_numpy(zero_copy_only=False)[order]
            return [int(each) for each in reduced.reduceat(values, firsts)]

        hashes = self.rows[_HASH].to_numpy(zero_copy_only=False)[order]
        found: dict[str, Sequence[Any]] = {
            **{name: self.rows[name].take(pa.array(order[firsts])).to_pylist() for name in _GROUP},
            "rows": [int(each) for each in ends - firsts],
            "first": of(ORDER, np.minimum),
            "bytes": of(_BYTES, np.add),
            "size": of(_SIZE, np.maximum),
            "content_xor": [int(each) for each in np.bitwise_xor.reduceat(hashes, firsts)],
            "content_sum": [int(each) for each in np.add.reduceat(hashes & _LOW_BITS, firsts)],
        }
        for name in self.judge.counted_of_good:
            given = self.rows[f"{_COUNTED}{name}"].is_valid().to_numpy()[order].astype(np.int64)
            found[name] = [int(each) for each in np.add.reduceat(given, firsts)]
        same = {"pid": 0, "is_header": False}
        return [{**same, **dict(zip(found, values, strict=True))} for values in zip(*found.values(), strict=True)]

    @cached_property
    def group_of_each(self) -> Any:
        """The number of each row's group."""
        codes = [self.rows[name].dictionary_encode().combine_chunks().indices.fill_null(-1) for name in _GROUP]
        return np.unique(np.stack([np.asarray(each) for each in codes]), axis=1, return_inverse=True)[1].ravel()

    def finish(self) -> None:
        """Nothing: they are judged already."""

    def close(self) -> None:
        """Nothing: they are not kept by Spark."""


class FetchedBatch(Batch):
    """One batch whose rows are in the memory of this process.

    Args:
        read: the batch.
        unreadable: as `BatchRows`.
        left_out: as `BatchRows`.
    """

    def __init__(self, read: FetchedRead, unreadable: Sequence[tuple[str, str]], left_out: Mapping[str, int]) -> None:
        super().__init__(read.judge, BatchRows(read.judged, read.counted, unreadable, left_out))
        self._fetched = read

    @property
    def size(self) -> int:
        """What its rows take in memory, in bytes."""
        return int(self._fetched.rows.nbytes)

    def good(self, first_seq: int, kept_before: Collection[str]) -> pa.Table:
        """The good rows, as bronze has them.

        Args:
            first_seq: the number that the first row of the batch gets.
            kept_before: columns of bronze for fields that are kept no more.
        """
        rows = self._placed.filter(self._is_good)
        none = pa.nulls(rows.num_rows, pa.map_(pa.string(), pa.string()))
        return pa.table(
            {
                **{name: rows[name] for name in self.definition.payload},
                **dict.fromkeys(kept_before, none),
                "_event_id": rows["_event_id"] if self.definition.event_id else _ids(rows["_source"]),
                "_ingest_seq": pc.add(rows[ORDER], first_seq),
                "_ingest_time": rows["_ingest_time"],
                "_source": rows["_source"],
                "_heartbeat": pa.repeat(False, rows.num_rows),
            }
        )

    def aside(self, at_ms: int) -> pa.Table:
        """The rows that are set aside, as the quarantine has them; files that cannot be read included.

        Args:
            at_ms: the batch's clock.
        """
        rows = self._placed.filter(pc.invert(self._is_good))
        found = pa.table(
            {
                "reason": rows[REASON],
                "detail": rows[DETAIL],
                "raw": rows[RAW],
                "_ingest_time": rows["_ingest_time"],
                "_source": rows["_source"],
            }
        )
        of_files = [
            {
                "reason": UNREADABLE,
                "detail": error,
                "raw": path,
                "_ingest_time": instant_of(at_ms * 1000),
                "_source": {"name": path, "partition": None, "position": None},
            }
            for path, error in self.unreadable
        ]
        return pa.concat_tables([found, pa.Table.from_pylist(of_files, found.schema)])

    @cached_property
    def _placed(self) -> pa.Table:
        """The rows, with where each came from."""
        rows, offsets = self._fetched.rows, {}
        for file, start, first, lines in self.places.block_starts():
            offsets[file, start] = lines - first
        of_group = np.array([offsets[group[NAME], group[BLOCK]] for group in self._fetched.counted], dtype=np.int64)
        position = np.asarray(rows[ORDER]) + of_group[self._fetched.group_of_each]
        parts = [rows[NAME].combine_chunks(), pa.nulls(rows.num_rows, pa.int32()), pa.array(position, pa.int64())]
        return rows.append_column("_source", pa.StructArray.from_arrays(parts, ["name", "partition", "position"]))

    @property
    def _is_good(self) -> Any:
        return self._fetched.rows[REASON].is_null()

    def close(self) -> None:
        """Nothing: its rows are not kept by Spark."""

    def _unknown_names(self) -> tuple[str, ...]:
        rows = self._fetched.rows.filter(self._is_good)
        return tuple(sorted({pc.min(rows[_LEAST]).as_py(), pc.max(rows[_MOST]).as_py()} - {None}))


def _ids(source: pa.ChunkedArray) -> pa.Array:
    """What `bronze_columns` gives as ids of events that have none of their own."""
    texts = (f"{place['name']}/{place['position']}" for place in source.to_pylist())
    return pa.array([md5(text.encode()).hexdigest() for text in texts], pa.string())
