"""Steps that look at one row at a time: an event, or after a stateful step one of its results."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from spark_jobs.spec.base import FROZEN
from spark_jobs.spec.expressions import Condition, Scalar, check_column_names, columns
from spark_jobs.spec.steps.base import KnownColumns, Origins, StepSpec, origins_of, refuse_result_columns


class Where(StepSpec):
    """Keeps the rows for which a condition is true.

    Before a stateful step the others are counted as `filtered`, after it as `withheld`.
    """

    kind: Literal["where"] = "where"
    condition: Condition

    def __init__(self, condition: str, **other: object) -> None:
        super().__init__(condition=condition, **other)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the condition."""
        yield "Where", columns(self.condition)


class Select(StepSpec):
    """Adds columns, computed from one event (before a stateful step) or one result row (after it).

    Attributes:
        columns: new column -> Spark SQL expression. The columns that exist stay; a name that exists is refused.
    """

    kind: Literal["select"] = "select"
    columns: Annotated[Mapping[str, Scalar], Field(min_length=1), FROZEN]

    def __init__(self, columns: Mapping[str, str], **other: object) -> None:
        super().__init__(columns=columns, **other)

    @field_validator("columns")
    @classmethod
    def _names_are_free(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(columns)
        refuse_result_columns(columns)
        return columns

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of each expression."""
        for name, sql in self.columns.items():
            yield f"Select {name!r}", columns(sql)

    def adds(self) -> Iterable[str]:
        """The columns that it computes."""
        return tuple(self.columns)

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """Those of its expressions."""
        return {**given, **{name: origins_of(columns(sql), given) for name, sql in self.columns.items()}}
