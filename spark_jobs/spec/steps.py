"""Steps of a stateful pipeline, from its source to its sink."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from spark_jobs.spec.base import FROZEN, Spec
from spark_jobs.spec.expressions import (
    AggregateExpression,
    Condition,
    OrderBy,
    PlainColumn,
    Scalar,
    check_column_names,
    ungrouped_columns,
)
from spark_jobs.spec.windows import Window

RESULT_COLUMNS = frozenset({"window_start", "window_end", "final_after", "is_final", "revision", "revised_at", "rank"})
"""What Tidemark adds to results."""


class Where(Spec):
    """Keeps the events for which a condition is true; the others are counted as `filtered`."""

    kind: Literal["where"] = "where"
    condition: Condition

    def __init__(self, condition: str, **other: object) -> None:
        super().__init__(condition=condition, **other)


class Select(Spec):
    """Adds columns, computed from one event (before `Aggregate`) or one result row (after it).

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
        _refuse_result_columns(columns)
        return columns


class Aggregate(Spec):
    """Groups events by window and key and computes measures over each group.

    The result has `window_start` and `window_end` (where there is a window), the columns of `by`, the measures, and
    `__events`, the number of events that it stands for.

    Attributes:
        window: `Tumbling`, `Hopping`, `Session`, or None for a running total over the whole stream.
        by: columns of the key; none for one group a window.
        measures: column -> aggregate in Spark SQL.
    """

    kind: Literal["aggregate"] = "aggregate"
    window: Annotated[Window, Field(discriminator="kind")] | None = None
    by: tuple[PlainColumn, ...] = ()
    measures: Annotated[Mapping[str, AggregateExpression], FROZEN]

    @field_validator("by", "measures")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...] | Mapping[str, str]:
        check_column_names(names)
        _refuse_result_columns(names)
        return names

    @model_validator(mode="after")
    def _measures_and_key_fit(self) -> Self:
        keys = {name.casefold() for name in self.by}
        for name, sql in self.measures.items():
            if name.casefold() in keys:
                raise ValueError(
                    f"measures: {name!r} is already a column of `by` ({list(self.by)}): rename the measure"
                )
            loose = sorted(column for column in ungrouped_columns(sql) if column.casefold() not in keys)
            if loose:
                raise ValueError(
                    f"measures.{name}: {loose} stand outside of an aggregate in {sql!r}, though they are no columns of "
                    f"`by` ({list(self.by)}): aggregate them, or compute the column with a Select after Aggregate"
                )
        return self


class TopN(Spec):
    """Ranks the groups of each window and keeps the first n, with their `rank` (1 is best).

    Ties are broken by the key, so that every replay ranks alike.
    """

    kind: Literal["top_n"] = "top_n"
    n: Annotated[int, Field(ge=1)]
    order_by: OrderBy

    def __init__(self, n: int, *, order_by: str, **other: object) -> None:
        super().__init__(n=n, order_by=order_by, **other)


def _refuse_result_columns(names: Iterable[str]) -> None:
    for name in names:
        if name.casefold() in RESULT_COLUMNS:
            raise ValueError(f"{name!r} is a column that Tidemark adds to results: choose another name")


Step = Annotated[Where | Select | Aggregate | TopN, Field(discriminator="kind")]
