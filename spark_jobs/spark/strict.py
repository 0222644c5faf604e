"""The strict readers of JSON and CSV (`infra/java/io/tidemark/reading`) as columns: one pass, values and verdict."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class
from spark_jobs.spec.errors import DefinitionError

_READERS = {"json": "io.tidemark.reading.StrictJson", "csv": "io.tidemark.reading.StrictCsv"}


def read_strictly(spark: SparkSession, form: str, text: Column, ddl: str, options: Mapping[str, Any]) -> Column:
    """A struct of the columns, with `__reason` and `__detail` where there are none; of JSON with `__more`, too.

    Args:
        spark: the session.
        form: `json`: of lines; `csv`: of structs of texts, one for each column and one that is null.
        text: the events.
        ddl: of the columns.
        options: as the Java class says.

    Raises:
        DefinitionError: if no text can be read so.
    """
    schema = java_class(spark, "org.apache.spark.sql.types.StructType").fromDDL(ddl)
    try:
        reader = java_class(spark, _READERS[form])(schema, json.dumps(options))
    except IllegalArgumentException as error:
        raise DefinitionError(f"columns and parsing: {error}. Nothing was read or written.") from None
    return ClassicColumn(reader.of(text._jc))
