"""Two streams, put together by key and time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.columns import EVENT_ID, INGEST_SEQ, OTHER, SIDE
from spark_jobs.plan.equations import Equation, Holding
from spark_jobs.plan.identity import event_columns, same_event
from spark_jobs.plan.operators.base import Operator, Side
from spark_jobs.plan.verdicts import EventTime, Verdict
from spark_jobs.spec.steps.join import Join

LEFT, RIGHT, BOTH = "left", "right", "both"


@dataclass(frozen=True)
class Joined(Operator):
    """A `Join`."""

    kind = "join"

    @property
    def step(self) -> Join:
        """What joins."""
        return next(step for step in self.pipeline.steps if isinstance(step, Join))

    @property
    def sides(self) -> tuple[Side, ...]:
        """The pipeline's own tables, and the other one."""
        (left,) = super().sides
        grace = self.pipeline.watermark.grace if self.pipeline.watermark else timedelta(0)
        delay = left.delay if self.step.delay is None else self.step.delay + grace
        return (
            Side(LEFT, left.tables, left.event_time, left.delay, left.steps),
            Side(RIGHT, (self.step.other,), self.step.event_time, delay, ()),
        )

    @property
    def state_operators(self) -> tuple[str, ...]:
        """One, with the rows of both sides."""
        return ("symmetricHashJoin",)

    @property
    def state_stores(self) -> Mapping[str, str]:
        """The rows of each side."""
        return {f"{side}_state_rows": f"{side}-keyWithIndexToValue" for side in (LEFT, RIGHT)}

    @property
    def outer(self) -> tuple[str, ...]:
        """The sides of which events without a match are written."""
        return {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}[self.step.how]

    @property
    def can_be_recomputed(self) -> bool:
        """Also without a match."""
        return True

    @property
    def placed_by(self) -> tuple[str, ...]:
        """Where its left event happened; without one, its right event."""
        return self.statistics

    @property
    def touches(self) -> timedelta:
        """The longer of both distances at which events match."""
        return max(self.step.within or timedelta(0), self.step.before)

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """Either side looks for the other."""
        return self.touches, self.touches

    @property
    def reads_as_stream(self) -> bool:
        """Each event of the result is one that the ledger counts, on time or late."""
        return True

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The events of both sides, by their identity: a copy has the same id."""
        left, right = self.sides
        return (*event_columns(several=left.several), *event_columns(several=right.several, prefix=OTHER))

    @property
    def repair_unit(self) -> str:
        """What one late event can change."""
        return "the rows of its key within reach, those without a match included"

    @property
    def verdict(self) -> Verdict:
        """By its time."""
        return EventTime()

    @property
    def keys(self) -> tuple[str, ...]:
        """The events of both sides."""
        return (EVENT_ID, f"{OTHER}{EVENT_ID}")

    @property
    def keeps_events_in_state(self) -> bool:
        """Until the other side has come."""
        return True

    @property
    def gives_events(self) -> bool:
        """A row for each match."""
        return True

    @property
    def content(self) -> tuple[str, ...]:
        """Which events were put together."""
        return self.row_keys

    @property
    def event_keys(self) -> tuple[str, ...]:
        """Columns of both sides."""
        return self.step.on

    @property
    def statistics(self) -> tuple[str, ...]:
        """The times of both sides."""
        return tuple(side.event_time for side in self.sides if side.event_time)

    @property
    def horizon(self) -> timedelta:
        """Delay, and how long an event waits for the other side."""
        longest = max(side.delay or timedelta(0) for side in self.sides)
        return longest + max(self.step.within or timedelta(0), self.step.before) + timedelta(milliseconds=1)

    @property
    def result_terms(self) -> Mapping[str, str]:
        """Matches, and events without one."""
        terms = {"matches": f"count(CASE WHEN {SIDE} = '{BOTH}' THEN 1 END)"}
        return terms | {f"{side}_alone": f"count(CASE WHEN {SIDE} = '{side}' THEN 1 END)" for side in self.outer}

    @property
    def equations(self) -> tuple[Equation, ...]:
        """By fate, of both sides together and of each; each row is a match, or an event without one."""
        fates = ("on_time", "late", "filtered", "unmatched", "quarantined", "timeless")
        by_side = (
            Equation(f"{side.name} events", f"{side.name}_read", tuple(f"{side.name}_{fate}" for fate in fates))
            for side in self.sides
        )
        alone = (f"{side}_alone" for side in self.outer)
        return (*super().equations, *by_side, Equation("rows", "produced", ("matches", *alone)))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Each event of a side is in the result, waits for the other side, or has waited in vain unseen."""
        held = [Holding("rows", self.result, "count(*)", ("rows",), "written", whole_table=True)]
        for each, prefix in zip(self.sides, ("", OTHER), strict=True):
            # By its identity: a copy of an event has its id, and is an event.
            side, event = each.name, event_columns(several=each.several, prefix=prefix)
            rest = f"{side}_open" if side in self.outer and not self.withholds else f"{side}_open_or_not_written"
            where = f"{prefix}{INGEST_SEQ} IS NOT NULL"
            aside = self.sets_aside and side == LEFT
            if self.keeps_late or aside:
                where += (
                    f" AND NOT EXISTS (SELECT 1 FROM late WHERE late.{SIDE} = '{side}' AND {_same_event(each, prefix)})"
                )
            held.append(
                Holding(
                    f"{side} events",
                    self.result,
                    f"count(DISTINCT ({', '.join(event)}))",
                    (f"{side}_on_time",),
                    "on time",
                    where=where,
                    whole_table=True,
                    open=rest,
                    late=self.late if self.keeps_late else None,
                    replayed=self.quarantine if aside else None,
                )
            )
        return (*held, *super().holdings)

    def describe(self) -> str:
        """In a line."""
        step = self.step
        return f"{step.how} join with {step.other.name} on {', '.join(step.on)} by time"


def _same_event(side: Side, prefix: str) -> str:
    """Whether a row of `late` is of the event that a row of `books`, the result, has of a side."""
    return same_event(lambda name: f"late.{name}", lambda name: f"books.{prefix}{name}", several=side.several)
