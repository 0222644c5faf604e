"""Steps of a stateful pipeline, from its source to its sink."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from spark_jobs.spec.base import Spec
from spark_jobs.spec.expressions import AggregateExpression, OrderBy, Scalar, check_column_names
from spark_jobs.spec.windows import Window


class Where(Spec):
    """Keeps the events for which a condition is true; the others are counted as `filtered`."""

    kind: Literal["where"] = "where"
    condition: Scalar

    def __init__(self, condition: str, **other: object) -> None:
        super().__init__(condition=condition, **other)


class Select(Spec):
    """Adds columns, computed from one event (before `Aggregate`) or one result row (after it).

    Attributes:
        columns: new column -> Spark SQL expression. The columns that exist stay; a name that exists is refused.
    """

    kind: Literal["select"] = "select"
    columns: Mapping[str, Scalar]

    def __init__(self, columns: Mapping[str, str], **other: object) -> None:
        super().__init__(columns=columns, **other)

    @field_validator("columns")
    @classmethod
    def _names_are_free(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(columns)
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
    by: tuple[str, ...] = ()
    measures: Mapping[str, AggregateExpression]

    @field_validator("by", "measures")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...] | Mapping[str, str]:
        check_column_names(names)
        taken = {"window_start", "window_end", "final_after", "revision", "revised_at", "rank"}
        for name in names:
            if name in taken:
                raise ValueError(f"{name!r} is a column that Tidemark adds to results: choose another name")
        return names


class TopN(Spec):
    """Ranks the groups of each window and keeps the first n, with their `rank` (1 is best).

    Ties are broken by the key, so that every replay ranks alike.
    """

    kind: Literal["top_n"] = "top_n"
    n: Annotated[int, Field(ge=1)]
    order_by: OrderBy

    def __init__(self, n: int, *, order_by: str, **other: object) -> None:
        super().__init__(n=n, order_by=order_by, **other)


Step = Annotated[Where | Select | Aggregate | TopN, Field(discriminator="kind")]
