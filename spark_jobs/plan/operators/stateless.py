"""No step that remembers events: each row of the result is one event."""

from dataclasses import dataclass

from spark_jobs.plan.columns import EVENT_ID
from spark_jobs.plan.equations import Holding
from spark_jobs.plan.operators.base import Operator


@dataclass(frozen=True)
class Stateless(Operator):
    """Only steps that look at one event each."""

    kind = "stateless"

    @property
    def repair_unit(self) -> str:
        """What one late event can change."""
        return "nothing: no event is late"

    @property
    def keys(self) -> tuple[str, ...]:
        """Each event stands for itself."""
        return (EVENT_ID,)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The event time, if there is one."""
        return (self.pipeline.event_time,) if self.pipeline.event_time else ()

    @property
    def content(self) -> tuple[str, ...]:
        """Which events."""
        return (EVENT_ID,)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """A row for each event that passed."""
        rows = Holding("rows", self.result, "count(*)", ("on_time",), "passed", whole_table=True)
        return (rows, *super().holdings)

    def describe(self) -> str:
        """In a line."""
        return "a row for each event that passes"
