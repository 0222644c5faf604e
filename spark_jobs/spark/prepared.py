"""Plans that are made once, and computed of the rows of each batch (`infra/java/io/tidemark/planning`)."""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_jobs.spark.java import java_class


class PreparedPlan:
    """What is computed of the rows of each batch of a query, which are few.

    Args:
        batch: one, as Spark hands it over; all others have its columns.
        compute: what to compute of such a frame. Numbers in it that are others in each batch are each a `BatchNumber`.
    """

    def __init__(self, batch: DataFrame, compute: Callable[[DataFrame], DataFrame]) -> None:
        java = java_class(batch.sparkSession, "io.tidemark.planning.PreparedPlan")
        rows = DataFrame(java.standIn(batch._jdf), batch.sparkSession)
        self._plan = java(rows._jdf, compute(rows)._jdf)

    def fetch(self, batch: DataFrame) -> pa.Table:
        """What is computed of a batch, in the memory of this process, as `frames.fetch` gives it.

        Args:
            batch: as Spark hands it over.
        """
        with pa.ipc.open_stream(self._plan.fetch(batch._jdf)) as found:
            return found.read_all()
