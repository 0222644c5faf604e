"""What Spark knows of a frame."""

from pyspark.sql import DataFrame


def size_of(persisted: DataFrame) -> int:
    """What a persisted frame takes in memory, in bytes, once it has been computed; rows picked out of it take less."""
    return int(persisted._jdf.queryExecution().withCachedData().stats().sizeInBytes())
