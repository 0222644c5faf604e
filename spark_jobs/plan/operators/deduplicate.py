"""The first event of each key; alone, or before groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.columns import EVENT_ID
from spark_jobs.plan.equations import EVENTS_UNIT, PAIRS_UNIT, Equation, Holding
from spark_jobs.plan.operators.aggregate import Grouped
from spark_jobs.plan.operators.base import Operator
from spark_jobs.plan.operators.stateless import Stateless
from spark_jobs.plan.tables import TableRef
from spark_jobs.plan.verdicts import EventTime, Verdict
from spark_jobs.plan.windows import windows_per_event
from spark_jobs.spec import Session
from spark_jobs.spec.steps.deduplicate import Deduplicate


@dataclass(frozen=True)
class Deduplicated(Operator):
    """A `Deduplicate`.

    What it lets through is a result by itself, or goes on to the groups of an `Aggregate`. Spark asks of every event
    that meets the first of its operators whether it is late, so that only this one decides.
    """

    kind = "deduplicate"

    @property
    def step(self) -> Deduplicate:
        """What removes duplicates."""
        return next(step for step in self.pipeline.steps if isinstance(step, Deduplicate))

    @property
    def groups_after(self) -> Grouped | None:
        """The `Aggregate` behind it."""
        return Grouped(self.pipeline) if len(self.pipeline.stateful_steps) > 1 else None

    @property
    def after(self) -> Operator:
        """What makes the result of the events that are let through."""
        return self.groups_after or Stateless(self.pipeline)

    @property
    def state_operators(self) -> tuple[str, ...]:
        """One for the keys, and those of the groups."""
        return ("dedupeWithinWatermark", *self.after.state_operators)

    @property
    def gives_events(self) -> bool:
        """Alone."""
        return self.groups_after is None

    @property
    def can_be_recomputed(self) -> bool:
        """Alone. Which events have gone on to groups is recorded nowhere."""
        return self.groups_after is None

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The event time."""
        return (self.pipeline.event_time,) if self.pipeline.event_time else ()

    @property
    def touches(self) -> timedelta:
        """The key is remembered so long: an event in time that is not here yet can be the same."""
        return self.step.within

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """Of a late event: what it may be a duplicate of. What the stream remembered, its batches tell."""
        return self.step.within, self.step.within

    @property
    def follows_result(self) -> bool:
        """Alone: a key that is remembered removes all events in time, however far they lie from the first."""
        return self.groups_after is None

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The event by its number."""
        return self.after.row_keys

    @property
    def repair_keys(self) -> tuple[str, ...]:
        """The key."""
        return self.step.keys

    @property
    def repair_unit(self) -> str:
        """What one late event can change."""
        return self.after.repair_unit if self.groups_after else "the row of its key"

    @property
    def verdict(self) -> Verdict:
        """By its time."""
        return EventTime()

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the groups, or the event."""
        return self.after.keys

    @property
    def content(self) -> tuple[str, ...]:
        """Of the groups, or the key: of two first events in one batch Spark takes any one."""
        return self.after.content if self.groups_after else self.step.keys

    @property
    def event_keys(self) -> tuple[str, ...]:
        """Of the groups."""
        return self.after.event_keys

    @property
    def gap(self) -> Session | None:
        """Of the groups."""
        return self.after.gap

    @property
    def statistics(self) -> tuple[str, ...]:
        """Of the result."""
        return self.after.statistics

    @property
    def horizon(self) -> timedelta:
        """Of the groups; an event that is let through waits for nothing."""
        return self.after.horizon

    @property
    def keeps_groups(self) -> bool:
        """As the groups do."""
        return self.after.keeps_groups

    @property
    def result_terms(self) -> Mapping[str, str]:
        """Of the groups."""
        return self.after.result_terms

    def settled(self, terms: Mapping[str, int], duplicates: int) -> Mapping[str, int]:
        """What Spark removed was neither late nor counted."""
        on_time = terms["on_time"] - duplicates
        settled = {**terms, "on_time": on_time, "duplicate": duplicates}
        if self.groups_after and (window := self.groups_after.step.window) is not None:
            settled["pairs"] = on_time * (windows_per_event(window) or 1)
        return settled

    @property
    def equations(self) -> tuple[Equation, ...]:
        """By fate; each event that is let through is in a row, or in the pairs of the groups."""
        if self.groups_after is None:
            return (*super().equations, Equation(EVENTS_UNIT, "on_time", ("rows", "withheld")))
        pairs = (
            Equation(each.unit, each.whole, tuple(part for part in each.parts if part != "pairs_late"), each.open)
            for each in self.after.equations
            if each.unit == PAIRS_UNIT
        )
        return (*super().equations, *pairs)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Of the result; the late events are counted as such."""
        if self.groups_after is None:
            rows = Holding("rows", self.result, "count(*)", ("rows",), "let through", whole_table=True)
            return (rows, *super().holdings)
        return (
            *(each for each in self.after.holdings if each.table.role not in ("late", "quarantine")),
            *super().holdings,
        )

    @property
    def open_in_result(self) -> tuple[str, TableRef, bool] | None:
        """Of the groups."""
        return self.after.open_in_result

    def describe(self) -> str:
        """In a line."""
        then = f", then {self.groups_after.describe()}" if self.groups_after else ""
        keys = ", ".join("event id" if key == EVENT_ID else key for key in self.step.keys)
        return f"first event of each {keys}{then}"
