"""Classes of Java, by names that are found at once.

Where py4j is asked for a part of a path, such as `org`, or for a name without its package, it has Java look for a class
of that name in each of a dozen packages, and each time in all jars there are.
"""

from typing import Any

from py4j.java_gateway import java_import
from pyspark.sql import SparkSession

_ASKED_FOR_BY_PYSPARK = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)
"""By their last part, with every frame and nearly every column that is built."""


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of the session's JVM.

    Args:
        spark: the session.
        name: with its package.
    """
    return getattr(spark._jvm, name)


def name_classes(spark: SparkSession) -> None:
    """Tells the session's JVM where those classes are that PySpark asks for without their package."""
    for name in _ASKED_FOR_BY_PYSPARK:
        java_import(spark._jvm, name)
