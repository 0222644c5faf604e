"""Events with the version of another table that held at their time."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from spark_jobs.spec.durations import Duration, PositiveDuration
from spark_jobs.spec.expressions import PlainColumn
from spark_jobs.spec.sources import Table
from spark_jobs.spec.steps.base import Columns, KnownColumns, Origins, StepSpec, origins_of_table
from spark_jobs.spec.steps.join import check_two_sides

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class AsOf(StepSpec):
    """Puts each event (left) beside the version of another table (right) that held at its event time.

    A version holds from its own event time on, that instant included, until the next one of its key, and for `keep` at
    most. It is found whenever it arrives before the watermark has passed the event: each event waits for that. A null
    in a key has no version. Events of either side behind the watermark are late.

    Attributes:
        other: the table of versions. Columns that both sides have beside the key are renamed with `select`.
        on: columns that both sides have; a version is of an event with equal ones.
        event_time: of a version: when it began to hold; a column that the left side does not have.
        keep: how long a version holds at most, in event time. So long it stays in state.
        how: `left`: an event without a version is a row, too, with nulls; `inner`: it is none.
        delay: how far versions may arrive out of order; None: as far as events.
    """

    stateful: ClassVar[bool] = True

    kind: Literal["as_of"] = "as_of"
    other: Table
    on: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    event_time: PlainColumn
    keep: PositiveDuration
    how: Literal["left", "inner"] = "left"
    delay: Duration | None = None

    def __init__(self, other: Table, **options: object) -> None:
        super().__init__(other=other, **options)

    def tables(self) -> Iterable[Table]:
        """The table of versions."""
        return (self.other,)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key."""
        yield "AsOf on", self.on

    def gives(self, given: Columns) -> Columns:
        """The columns of both sides."""
        if given is None or self.other.select is None:
            return None
        return given | frozenset(self.other.select) | {"_side"}

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """The columns of both sides."""
        return {**origins_of_table(self.other, known), **given}

    def check(self, pipeline: "Pipeline") -> None:
        """It needs a watermark, and two tables."""
        check_two_sides(pipeline, self)

    @property
    def within(self) -> timedelta:
        """How far apart two events may be that are put together."""
        return self.keep
