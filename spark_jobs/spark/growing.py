"""Delta tables that streams read while others of the same session still fill them."""

from uuid import uuid4

from pyspark.sql import SparkSession

from spark_jobs.spark.java import java_class


class Growth:
    """The time in which tables are filled: until it ends, readers take only batches to which more would add nothing.

    So their batches are the same as if they had begun when it ended.

    Args:
        spark: the session of those that fill the tables and of those that read them.
        filled: names of the tables.
        beside: other tables of their readers, which also have all that is to be read when it ends.

    Attributes:
        format: of a stream over one of the tables.
        options: of it.
    """

    format = "io.tidemark.planning.GrowingTable"

    def __init__(self, spark: SparkSession, filled: frozenset[str], beside: frozenset[str]) -> None:
        self.filled, self.tables = filled, filled | beside
        self._name = uuid4().hex
        self.options = {"tidemark.growing": self._name}
        self._java = java_class(spark, self.format)
        self._java.grows(self._name)

    def end(self) -> None:
        """The tables are complete: readers take the rest, then end."""
        self._java.complete(self._name)

    def leave(self) -> None:
        """Readers end after the batches that they are in."""
        self._java.leave(self._name)
