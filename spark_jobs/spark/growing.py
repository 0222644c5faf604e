"""Delta tables as streams, also while others of the same session still fill them."""

from collections.abc import Mapping, Set
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_jobs.spark.java import java_class

STREAMED = "io.tidemark.planning.StreamedTable"
"""Format of a stream over a Delta table: Delta's own, but that it reads no more of the log than the newest commits."""


class Growth:
    """The time in which tables are filled: until it ends, readers take only batches to which more would add nothing.

    So their batches are the same as if they had begun when it ended.

    Args:
        spark: the session of those that fill the tables and of those that read them.
        filled: names of the tables.
        before: table -> its newest version before, or -1; of all tables that the readers read.

    Attributes:
        format: of a stream over a table that a reader reads.
    """

    format = "io.tidemark.planning.GrowingTable"

    def __init__(self, spark: SparkSession, filled: Set[str], before: Mapping[str, int]) -> None:
        self._filled, self._before = filled, before
        self._name = uuid4().hex
        self._java = java_class(spark, self.format)
        self._java.grows(self._name)

    def options(self, table: str, *, batch_bytes: int | None) -> dict[str, str]:
        """Of a stream over a table that a reader reads.

        Args:
            table: its name.
            batch_bytes: how much a batch takes of a table that is filled, unless it had enough before for a batch by
                the stream's own limits; None: by those.
        """
        options = {"tidemark.growing": self._name, "tidemark.growing.before": str(self._before[table])}
        if batch_bytes is not None and table in self._filled:
            options["tidemark.growing.bytes"] = str(batch_bytes)
        return options

    def end(self) -> None:
        """The tables are complete: readers take the rest, then end."""
        self._java.complete(self._name)

    def leave(self) -> None:
        """Readers end after the batches that they are in."""
        self._java.leave(self._name)
