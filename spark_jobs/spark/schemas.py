"""Schemas from their SQL text."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from spark_jobs.spec.names import in_spark


def schema_ddl(columns: Mapping[str, str]) -> str:
    """Columns as a Spark schema."""
    return ", ".join(f"{in_spark(name)} {sql_type}" for name, sql_type in columns.items())


def schema_of(ddl: str) -> StructType:
    """A schema from its SQL text."""
    schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise TypeError(f"expected the columns of a table, got {ddl!r}")
    return schema
