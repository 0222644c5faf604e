"""Two streams of events, put together by key and time."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from spark_jobs.spec.durations import Duration, PositiveDuration, format_duration
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

    Without `within`, each event of either side matches the latest one of the other side at its own time, if that is at
    most `keep` old. Both wait until the watermark has passed them, so that the order of arrival does not matter.

    Attributes:
        other: the right side. Columns that both sides have beside the key are renamed with `select`.
        on: columns that both sides have, and that are equal in a match.
        event_time: of the right side; a column that the left side does not have.
        within: how long after an event of the left side one of the right side still matches it.
        before: how long before it one may.
        keep: without `within`: how long an event is the latest one of its key and side at most, in event time. So long
            it stays in state.
        how: `inner`: matches only; `left`, `right`, `full`: also the events of that side, or both, without a match,
            once the watermark tells that none can come any more; with `keep`, without a match at their time.
        delay: how far events of the right side may arrive out of order; None: as far as those of the left.
    """

    stateful: ClassVar[bool] = True

    kind: Literal["join"] = "join"
    other: Table
    on: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    event_time: PlainColumn
    within: Duration | None = None
    before: Duration = timedelta(0)
    keep: PositiveDuration | None = None
    how: Literal["inner", "left", "right", "full"] = "inner"
    delay: Duration | None = None

    def __init__(self, other: Table, **options: object) -> None:
        super().__init__(other=other, **options)

    @model_validator(mode="after")
    def _has_an_end(self) -> "Join":
        if self.within is None:
            if self.keep is None:
                raise ValueError(
                    'within, keep: one of them is required. within="1 hour" joins events that are at most so far '
                    'apart; keep="30 days" joins each event with the latest one of the other side, however long ago '
                    "up to that"
                )
            if self.before:
                raise ValueError("before: goes with within, got keep: leave it out")
            return self
        if self.keep is not None:
            raise ValueError("keep: an event is kept as long as within and before say: leave it, or within, out")
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
        check_two_sides(pipeline, self)


class TwoSides(Protocol):
    """A step that reads a table beside the pipeline's own."""

    @property
    def other(self) -> Table:
        """The table."""

    @property
    def on(self) -> tuple[str, ...]:
        """Columns that both have."""

    @property
    def event_time(self) -> str:
        """The column of the table that has its event time."""


def check_two_sides(pipeline: "Pipeline", step: TwoSides) -> None:
    """Refuses a pipeline whose events cannot be put beside those of another table.

    Args:
        pipeline: that has the step.
        step: which does it.

    Raises:
        ValueError: that says what, and the way out.
    """
    name = type(step).__name__
    if pipeline.event_time is None or pipeline.watermark is None:
        raise ValueError(f"event_time and watermark: are required where {name} waits for events by their time")
    if pipeline.sink.mode == "update":
        raise ValueError("sink: a match never changes, got mode 'update': leave it out")
    if pipeline.watermark.late is Late.UPDATE:
        raise ValueError("watermark: Late.UPDATE changes published results, which matches are not: use another")
    names = [table.name for table in pipeline.tables]
    if names.count(step.other.name) > 1:
        raise ValueError(f"steps: {name} expects another table than the pipeline's own, got {step.other.name}")
    if step.event_time == pipeline.event_time:
        raise ValueError(
            f"steps: {name}: both sides call their time {step.event_time!r}: rename the one of {step.other.name} "
            "with `select`"
        )
    if (select := step.other.select) is None:
        return
    missing = sorted({*step.on, step.event_time} - set(select))
    if missing:
        raise ValueError(f"steps: {name}: {step.other.name} does not select {missing}; it selects {sorted(select)}")
    own = next((table.select for table in pipeline.source_tables if table.select is not None), None) or {}
    doubled = sorted((set(own) & set(select)) - set(step.on))
    if doubled:
        raise ValueError(f"steps: {name}: both sides have {doubled}: rename those of {step.other.name}")
