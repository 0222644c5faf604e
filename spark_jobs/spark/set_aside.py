"""Good rows on their way to data files, and beside them what was found of all: one job judges and writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from spark_jobs.spark.java import java_class
from spark_jobs.spark.lines import frame_of

_ROOM = 64 * 2**20
"""For the rows that are kept with the driver, in bytes; each partition has its share of it."""


@dataclass(frozen=True)
class Kind:
    """Rows of one kind.

    Attributes:
        rows: how many there are.
        content: the two halves of the digest of their hashes, as `transforms.content.digest_sql` computes them.
    """

    rows: int
    content: tuple[int, int]


@dataclass(frozen=True)
class Tally:
    """What was found of judged rows.

    Attributes:
        good: those that passed.
        bad: why rows did not -> these.
        partitions: number of a partition -> its rows.
        filled: column -> good rows that have a value there.
        names: the first and the last of the names that good rows have; none: they have none.
    """

    good: Kind
    bad: Mapping[str, Kind]
    partitions: Mapping[int, int]
    filled: Mapping[str, int]
    names: tuple[str, ...]


class SetAside:
    """Judged rows, of which the good ones are computed once, to be written.

    Args:
        rows: to be judged.
        reason: column with why a row is not good; null: it is.
        row_hash: column with a 64-bit hash of the event.
        marked: column that is true for good rows that are to be kept, too.
        counted: columns whose values in good rows are counted.
        names: two columns of texts, of which the first and the last are found; None: there are none.

    Attributes:
        passed: the good rows. To be computed once; `tally` and `kept` are there afterwards.
    """

    def __init__(
        self,
        rows: DataFrame,
        *,
        reason: str,
        row_hash: str,
        marked: str,
        counted: Sequence[str],
        names: tuple[str, str] | None = None,
    ) -> None:
        self._session, self._counted = rows.sparkSession, tuple(counted)
        self._schema = rows._jdf.schema()
        rdd = rows._jdf.queryExecution().toRdd()
        columns = java_class(self._session, "java.util.ArrayList")()
        for name in counted:
            columns.add(name)
        self._sink: Any = java_class(self._session, "io.tidemark.writing.SetAside")(
            self._session._jsparkSession,
            self._schema,
            reason,
            row_hash,
            marked,
            columns,
            *(names or ("", "")),
            _ROOM // max(1, rdd.getNumPartitions()),
        )
        self.passed = frame_of(self._session, self._sink.passing(rdd), self._schema)

    @cached_property
    def tally(self) -> Tally:
        """What was found, of all rows."""
        found = json.loads(self._sink.figures())
        return Tally(
            good=_kind(found["good"]),
            bad={reason: _kind(figures) for reason, figures in found["bad"].items()},
            partitions={int(number): rows for number, rows in found["partitions"].items()},
            filled=dict(zip(self._counted, found["filled"], strict=True)),
            names=tuple(sorted({*found["names"]})),
        )

    def kept(self) -> DataFrame | None:
        """The rows that did not pass, and those that were marked; None: they were too many to be kept."""
        found = self._sink.kept(self._session._jsparkSession)
        return DataFrame(found, self._session) if found is not None else None


def _kind(figures: Sequence[int]) -> Kind:
    rows, xor, total = figures
    return Kind(rows, (xor, total))
