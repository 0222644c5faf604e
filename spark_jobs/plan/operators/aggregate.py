"""Groups by window and key, or by key alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan import windows
from spark_jobs.plan.columns import EVENTS, FATE, WINDOW_END, WINDOW_START
from spark_jobs.plan.equations import EVENTS_UNIT, PAIRS_UNIT, Equation, Holding
from spark_jobs.plan.operators.base import Operator, Replay
from spark_jobs.plan.tables import TableRef
from spark_jobs.plan.verdicts import Never, Verdict, WindowEnd
from spark_jobs.spec import Aggregate, Session
from spark_jobs.spec.durations import duration_ms


@dataclass(frozen=True)
class Grouped(Operator):
    """An `Aggregate`."""

    kind = "aggregate"

    @property
    def step(self) -> Aggregate:
        """What groups."""
        return next(step for step in self.pipeline.steps if isinstance(step, Aggregate))

    @property
    def state_operators(self) -> tuple[str, ...]:
        """Spark has another operator for sessions."""
        return ("sessionWindowStateStoreSaveExec",) if self.is_session else ("stateStoreSave",)

    @property
    def is_session(self) -> bool:
        """Whether its windows are sessions."""
        return isinstance(self.step.window, Session)

    @property
    def replay(self) -> Replay:
        """Where the cut of the batches decides which events share a session, they must be cut the same."""
        return Replay.BOUNDARIES if self.is_session else super().replay

    @property
    def repair_unit(self) -> str:
        """What one late event can change."""
        if self.is_session:
            return "the sessions of its key that touch it"
        if self.step.window is None:
            return "the row of its key"
        return "the whole window" if self.pipeline.top_n else "the rows of its key and windows"

    @property
    def placed_by(self) -> tuple[str, ...]:
        """Where its window starts."""
        return (WINDOW_START,) if self.step.window is not None else ()

    @property
    def can_be_recomputed(self) -> bool:
        """All windows."""
        return True

    @property
    def merges_rows(self) -> bool:
        """An event between two sessions."""
        return self.is_session

    @property
    def why_not_bootstrapped(self) -> str | None:
        """Windows on a grid end where others do; sessions and totals do not."""
        if self.is_session:
            return "a session may reach across every cut"
        if self.step.window is None:
            return "a running total has no part that is ever closed"
        return None

    def cut_upto(self, instant_us: int) -> int:
        """The end of a window."""
        window = self.step.window
        if window is None or isinstance(window, Session):
            return super().cut_upto(instant_us)
        return windows.last_end_upto(instant_us, window)

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """Events of a window that starts in a range come up to its end; a session may have begun before."""
        longest = windows.longest(self.step.window) if self.step.window is not None else timedelta(0)
        return longest if self.is_session else timedelta(0), longest

    def closed(self, watermark_ms: int) -> str:
        """Windows that the watermark has passed."""
        return f"({WINDOW_END} <= timestamp_micros({watermark_ms * 1000}L))"

    def first_open_us(self, watermark_ms: int) -> int:
        """The start of the oldest window that is open; a session that is open may start anywhere before."""
        window = self.step.window
        if window is None or isinstance(window, Session):
            return watermark_ms * 1000
        return windows.first_start_after(watermark_ms * 1000 - duration_ms(window.size) * 1000, window)

    @property
    def verdict(self) -> Verdict:
        """By the ends of its windows."""
        return WindowEnd(self.step.window) if self.step.window is not None else Never()

    @property
    def keys(self) -> tuple[str, ...]:
        """Window and key."""
        return (*self.statistics, *self.step.by)

    @property
    def measures(self) -> Mapping[str, str]:
        """Those of the step."""
        return self.step.measures

    @property
    def content(self) -> tuple[str, ...]:
        """Window, key, and how many events."""
        return (*self.keys, EVENTS)

    @property
    def event_keys(self) -> tuple[str, ...]:
        """The key of its group."""
        return self.step.by

    @property
    def gap(self) -> Session | None:
        """Sessions with `gap_sql`."""
        window = self.step.window
        return window if isinstance(window, Session) and window.gap_sql is not None else None

    @property
    def statistics(self) -> tuple[str, ...]:
        """The bounds of the window."""
        return (WINDOW_START, WINDOW_END) if self.step.window is not None else ()

    @property
    def horizon(self) -> timedelta:
        """Delay, grace and the longest window."""
        window, watermark = self.step.window, self.pipeline.watermark
        if window is None or watermark is None:
            return timedelta(0)
        return watermark.engine_delay + windows.longest(window)

    @property
    def keeps_groups(self) -> bool:
        """A ranking, and a choice, change with groups that did not."""
        return self.updates and (self.pipeline.top_n is not None or self.withholds)

    @property
    def result_terms(self) -> Mapping[str, str]:
        """Results that are updated hold all that was counted, so that no batch tells what became final in it."""
        if self.updates:
            return {}
        withheld = {"pairs_withheld": f"sum(CASE WHEN {FATE} IS NOT NULL THEN {EVENTS} END)"}
        kept = {"pairs_result": f"sum(CASE WHEN {FATE} IS NULL THEN {EVENTS} END)"}
        return kept | withheld if self.withholds else kept

    @property
    def equations(self) -> tuple[Equation, ...]:
        """By fate, and by pairs as results become final."""
        if self.updates:
            return super().equations
        parts = ("pairs_result", *(("pairs_withheld",) if self.withholds else ()), "pairs_late")
        return (*super().equations, Equation(PAIRS_UNIT, "pairs", parts, open="pairs_open", in_state=True))

    @property
    def repaired_by_key(self) -> bool:
        """A ranking changes with every group of its window."""
        return self.pipeline.top_n is None

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Rows of the result; of a result that is updated the pairs in it."""
        if not self.updates:
            rows = Holding("rows", self.result, "count(*)", ("rows",), "written", whole_table=True)
            return (rows, *super().holdings)
        if self.step.window is None:
            counted = Holding(EVENTS_UNIT, self.groups, f"sum({EVENTS})", ("on_time",), "on time", whole_table=True)
        else:
            counted = Holding(
                PAIRS_UNIT,
                self.groups,
                f"sum({EVENTS})",
                ("pairs", "pairs_revised"),
                "read and not late",
                minus=("pairs_late",),
                whole_table=True,
            )
        return (counted, *super().holdings)

    @property
    def counts_in_state(self) -> bool:
        """`__events` is the last aggregate."""
        return True

    @property
    def open_in_result(self) -> tuple[str, TableRef, bool] | None:
        """The events of its groups."""
        return (f"sum({EVENTS})", self.groups, self.step.window is not None) if self.updates else None

    def describe(self) -> str:
        """In a line."""
        window = self.step.window
        kind = "running total" if window is None else f"{window.kind} windows"
        return f"{kind} by {', '.join(self.step.by) or 'nothing'}"
