"""Two streams of events, put together by key and time."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from spark_jobs.spec.durations import Duration, format_duration
from spark_jobs.spec.expressions import PlainColumn
from spark_jobs.spec.sources import Table
from spark_jobs.spec.steps.base import Columns, KnownColumns, Origins, StepSpec, origins_of_table
from spark_jobs.spec.watermark import Late

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class Join(StepSpec):
    """Joins the events of the pipeline (left) with those of another table (right), by key and within a time.

    An event of the right side matches one of the left if their keys are equal and its time is at most `within` after,
    and at most `before` before, the left one's. A null in a key matches nothing. Events behind the watermark, which is
    that of the side further behind, are late, whichever their side.

    Attributes:
        other: the right side. Columns that both sides have beside the key are renamed with `select`.
        on: columns that both sides have, and that are equal in a match.
        event_time: of the right side; a column that the left side does not have.
        within: how long after an event of the left side one of the right side still matches it.
        before: how long before it one may.
        how: `inner`: matches only; `left`, `right`, `full`: also the events of that side, or both, without a match,
            once the watermark tells that none can come any more.
        delay: how far events of the right side may arrive out of order; None: as far as those of the left.
    """

    stateful: ClassVar[bool] = True

    kind: Literal["join"] = "join"
    other: Table
    on: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    event_time: PlainColumn
    within: Duration | None = None
    before: Duration = timedelta(0)
    how: Literal["inner", "left", "right", "full"] = "inner"
    delay: Duration | None = None

    def __init__(self, other: Table, **options: object) -> None:
        super().__init__(other=other, **options)

    @model_validator(mode="after")
    def _has_an_end(self) -> "Join":
        if self.within is None:
            raise ValueError(
                "within: is required: a join that keeps the latest row of each key for a time to live needs keyed "
                'state in Python, which is not there yet. Say how far apart two events may be: within="1 hour"'
            )
        if not self.within and not self.before:
            raise ValueError(
                f"within: expected more than zero, got {format_duration(self.within)}: Spark could not tell when an "
                'event of the same instant cannot come any more. Use within="1 ms"'
            )
        return self

    def tables(self) -> Iterable[Table]:
        """The table of the right side."""
        return (self.other,)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key, and the event times of both sides."""
        yield "Join on", self.on

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
        if pipeline.event_time is None or pipeline.watermark is None:
            raise ValueError("event_time and watermark: are required where Join waits for events by their time")
        if pipeline.sink.mode == "update":
            raise ValueError("sink: a match never changes, got mode 'update': leave it out")
        if pipeline.watermark.late is Late.UPDATE:
            raise ValueError("watermark: Late.UPDATE changes published results, which matches are not: use another")
        names = [table.name for table in pipeline.tables]
        if names.count(self.other.name) > 1:
            raise ValueError(f"steps: Join expects another table than the pipeline's own, got {self.other.name}")
        if self.event_time == pipeline.event_time:
            raise ValueError(
                f"steps: Join: both sides call their time {self.event_time!r}: rename the one of {self.other.name} "
                "with `select`"
            )
        if (select := self.other.select) is None:
            return
        missing = sorted({*self.on, self.event_time} - set(select))
        if missing:
            raise ValueError(f"steps: Join: {self.other.name} does not select {missing}; it selects {sorted(select)}")
        own = next((table.select for table in pipeline.source_tables if table.select is not None), None) or {}
        doubled = sorted((set(own) & set(select)) - set(self.on))
        if doubled:
            raise ValueError(f"steps: Join: both sides have {doubled}: rename those of {self.other.name}")
