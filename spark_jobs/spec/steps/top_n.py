"""Ranks."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from spark_jobs.spec.expressions import OrderBy, order_by_columns
from spark_jobs.spec.steps.base import KnownColumns, Origins, StepSpec, origins_of

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class TopN(StepSpec):
    """Ranks the groups of each window and keeps the first n, with their `rank` (1 is best).

    Ties are broken by the key, so that every replay ranks alike.
    """

    kind: Literal["top_n"] = "top_n"
    n: Annotated[int, Field(ge=1)]
    order_by: OrderBy

    def __init__(self, n: int, *, order_by: str, **other: object) -> None:
        super().__init__(n=n, order_by=order_by, **other)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns that it orders by."""
        yield "TopN order_by", order_by_columns(self.order_by)

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """The rank is that of what it orders by."""
        return {**given, "rank": origins_of(order_by_columns(self.order_by), given)}

    def check(self, pipeline: "Pipeline") -> None:
        """It ranks what an `Aggregate` with windows gives, as the last step."""
        kinds = [step.kind for step in pipeline.steps]
        if kinds.index("top_n") != len(kinds) - 1:
            raise ValueError(f"steps: expected TopN once, as the last step, got {kinds}")
        if "aggregate" not in kinds:
            raise ValueError(f"steps: TopN ranks the groups of an Aggregate, got {kinds}: put one before it")
