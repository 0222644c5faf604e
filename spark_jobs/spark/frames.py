"""What Spark knows of a frame."""

import pyarrow as pa
from pyspark.sql import DataFrame


def size_of(persisted: DataFrame | pa.Table) -> int:
    """What a persisted frame takes in memory, in bytes, once it has been computed; rows picked out of it take less."""
    if isinstance(persisted, pa.Table):
        return int(persisted.nbytes)
    return int(persisted._jdf.queryExecution().withCachedData().stats().sizeInBytes())
