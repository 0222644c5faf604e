"""Schemas from their SQL text."""

from pyspark.sql.types import StructType


def schema_of(ddl: str) -> StructType:
    """A schema from its SQL text."""
    schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise TypeError(f"expected the columns of a table, got {ddl!r}")
    return schema
