"""Lines of text files: how many there are of each piece, and columns with the place of each."""

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class
from spark_jobs.spark.stores import Stores


class FixedLines:
    """Lines of text files that are read several times: each time the same partitions, in the same order.

    Args:
        lines: of a plan that only reads; without blank ones.

    Attributes:
        rows: these lines.
    """

    def __init__(self, lines: DataFrame) -> None:
        self._session = lines.sparkSession
        self._rdd = lines._jdf.queryExecution().toRdd()
        self.rows = frame_of(self._session, self._rdd, lines._jdf.schema())

    def counted(self) -> list[dict[str, Any]] | None:
        """How many there are of each piece of a file: faster than to read them, as only their ends are looked for.

        Returns:
            Of each piece with lines its `partition`, its `file` and at which byte it `begins`; how many `lines` it has,
            how many come `before` them in the partition, their `bytes` and one more for each; the `size` of the file.
            None where a file is compressed, whose lines only its reader knows.
        """
        count = java_class(self._session, "io.tidemark.reading.LineCount")
        found = count.of(self._rdd, Stores(self._session).configuration())
        return None if found is None else list(json.loads(found))


class RowPlaces:
    """Columns with the places of rows, from their order: Spark's `monotonically_increasing_id`.

    Args:
        spark: the session.
        before: of each partition how many rows of the batch come before it.
        pieces: of each piece of a file the order of its first row, and how many lines of the file come before it.
    """

    def __init__(self, spark: SparkSession, before: Sequence[int], pieces: Sequence[tuple[int, int]]) -> None:
        columns = [list(each) for each in zip(*sorted(pieces), strict=True)] or [[], []]
        texts = (json.dumps(each) for each in (before, *columns))
        self._java = java_class(spark, "io.tidemark.planning.RowPlaces")(*texts)

    def numbers(self, order: Column) -> Column:
        """The number of a row in its batch, from 0, without gaps.

        Args:
            order: of the row.
        """
        return ClassicColumn(self._java.numbers(order._jc))

    def positions(self, order: Column) -> Column:
        """The number of a row in its file, from 0; for rows that are lines of files.

        Args:
            order: of the row.
        """
        return ClassicColumn(self._java.positions(order._jc))


def frame_of(session: SparkSession, rdd: Any, schema: Any) -> DataFrame:
    """A frame of what a plan of Spark's has computed.

    Args:
        session: of the rows.
        rdd: Java's, of internal rows.
        schema: Java's, of the rows.
    """
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, schema, False), session)
