"""What Spark says an error is: the kind, the condition and the SQL state of it and of each of its causes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark import SparkContext

from spark_jobs.plan.processing import ProcessorError

PROCESSOR_FAILED = "PROCESSOR_FAILED"
"""What a failure of a processor is called, as Spark would call it."""
RAISED_BY_A_USER = "P0001"
"""The SQL state of errors that a user's own code raises."""
_DEEPEST = 50


@dataclass(frozen=True)
class Thrown:
    """An error, or one of its causes.

    Attributes:
        kind: its class, without a package.
        condition: what Spark calls it, such as `DIVIDE_BY_ZERO`; None: it is none of Spark's own.
        state: its SQL state, such as `22012`; None: it has none.
    """

    kind: str
    condition: str | None = None
    state: str | None = None


def thrown(error: BaseException) -> tuple[Thrown, ...]:
    """An error and its causes, the outermost first."""
    return tuple(_of(error))


def _of(error: BaseException | None) -> Iterator[Thrown]:
    for _ in range(_DEEPEST):
        if error is None:
            return
        # PySpark has turned it into an error of its own, or py4j brought it as it was.
        java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        if java is not None:
            yield from _of_java(java)
            return
        yield Thrown(type(error).__name__)
        error = error.__cause__


def _of_java(java: Any) -> Iterator[Thrown]:
    for _ in range(_DEEPEST):
        if java is None:
            return
        kind = str(java.getClass().getName()).rsplit(".", 1)[-1]
        if kind == "PythonException" and f"{ProcessorError.__name__}: " in str(java.getMessage()):
            yield Thrown(ProcessorError.__name__, PROCESSOR_FAILED, RAISED_BY_A_USER)
        elif is_instance_of(SparkContext._gateway, java, "org.apache.spark.SparkThrowable"):
            yield Thrown(kind, java.getCondition(), java.getSqlState())
        else:
            yield Thrown(kind)
        java = java.getCause()
