"""Classes of Java, by names that Java is asked for once.

PySpark asks for a class with nearly every column that is built, and py4j passes each question on. Asked for a part of a
path, such as `org`, or for a name without its package, Java looks for a class of that name in each of a dozen packages,
and each time in all jars there are.
"""

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView, java_import
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


def remember_classes(spark: SparkSession) -> None:
    """Has the session keep the packages, classes and static methods that it, or PySpark, has asked its JVM for."""
    view: Any = spark._jvm
    for name in _ASKED_FOR_BY_PYSPARK:
        java_import(view, name)
    view.__class__ = _View


class _Remembering:
    """What has parts with names that mean the same for as long as the JVM lives."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # type: ignore[misc]
        if type(found) in _REMEMBERING:
            found.__class__ = _REMEMBERING[type(found)]
        elif not isinstance(found, JavaMember):
            return found  # the value of a static field, which can change
        # Python asks this method for what the object does not have itself.
        self.__dict__[name] = found
        return found


class _View(_Remembering, JVMView):  # type: ignore[misc]
    pass


class _Package(_Remembering, JavaPackage):  # type: ignore[misc]
    pass


class _Class(_Remembering, JavaClass):  # type: ignore[misc]
    pass


_REMEMBERING = {JavaPackage: _Package, JavaClass: _Class}
