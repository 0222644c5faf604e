"""No step that remembers events: each row of the result is one event."""

from dataclasses import dataclass

from spark_jobs.plan.columns import EVENT_ID
from spark_jobs.plan.equations import EVENTS_UNIT, Equation, Holding
from spark_jobs.plan.identity import event_columns
from spark_jobs.plan.operators.base import Operator


@dataclass(frozen=True)
class Stateless(Operator):
    """Only steps that look at one event each."""

    kind = "stateless"

    @property
    def why_not_bootstrapped(self) -> str | None:
        """There is nothing that a batch would do better."""
        return "it remembers nothing, so that its stream goes through the history as fast as a batch"

    @property
    def repair_unit(self) -> str:
        """What one event can change that is looked up again: none is late."""
        return "the row of the event" if self.sets_aside else "nothing: no event is late"

    @property
    def keys(self) -> tuple[str, ...]:
        """Each event stands for itself."""
        return (EVENT_ID,)

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The event time, if there is one."""
        return (self.pipeline.event_time,) if self.pipeline.event_time else ()

    @property
    def can_be_recomputed(self) -> bool:
        """Each row from its event."""
        return True

    def first_open_us(self, watermark_ms: int) -> int:
        """None is open."""
        return 2**62

    def closed(self, watermark_ms: int) -> str:
        """An event that was read is in the result."""
        return "true"

    @property
    def repair_keys(self) -> tuple[str, ...]:
        """The event itself."""
        return self.keys

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The event by its identity: a copy has its id."""
        return event_columns(several=self.sides[0].several)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The event time, if there is one."""
        return (self.pipeline.event_time,) if self.pipeline.event_time else ()

    @property
    def content(self) -> tuple[str, ...]:
        """Which events."""
        return self.row_keys

    @property
    def equations(self) -> tuple[Equation, ...]:
        """By fate; each event that passed is a row."""
        return (*super().equations, Equation(EVENTS_UNIT, "on_time", ("rows",)))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """The rows that were written."""
        rows = Holding("rows", self.result, "count(*)", ("rows",), "written", whole_table=True)
        return (rows, *super().holdings)

    def describe(self) -> str:
        """In a line."""
        return "a row for each event that passes"
