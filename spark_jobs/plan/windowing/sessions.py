"""Session windows: an event keeps its own open for a gap, and one that comes between two of them makes them one."""

from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.columns import GAP
from spark_jobs.plan.windowing.base import Windowing
from spark_jobs.spec import Session
from spark_jobs.spec.durations import duration_ms


@dataclass(frozen=True)
class Sessions(Windowing):
    """Windows that end when no event of their key has come for a gap.

    Attributes:
        window: as it is defined.
    """

    window: Session
    merging = True
    state_operators = ("sessionWindowStateStoreSaveExec",)
    why_no_cut = "a session may reach across every cut"

    def first_end_us(self, time: str) -> str:
        """Of the session that the event would be by itself."""
        return f"(unix_micros({time}) + {self._gap_of_one})"

    def last_end_us(self, time: str) -> str:
        """The same: it has one."""
        return self.first_end_us(time)

    def count(self, time: str) -> str:
        """One: an event by itself makes one session."""
        return "1L"

    @property
    def per_event(self) -> int | None:
        """One: an event by itself makes one session."""
        return 1

    def start_of(self, end_us: str) -> str:
        """A gap before the end: so long is the session of one event."""
        return f"{end_us} - {self._gap_of_one}"

    @property
    def every_us(self) -> str:
        """It has no other."""
        return "1L"

    def missed_ends(self, first_end_us: str, time: str, watermark_us: str) -> str:
        """The end of the one session that the event would have made."""
        return f"array({first_end_us})"

    @property
    def longest(self) -> timedelta:
        """The gap, or the longest that an event may bring."""
        return self.window.gap

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """A session that starts in a range may be one with events before it."""
        return self.window.gap, self.window.gap

    def first_open_us(self, watermark_ms: int) -> int:
        """A session that is open may start anywhere before the watermark."""
        return watermark_ms * 1000

    def last_end_upto(self, instant_us: int) -> int:
        """None is known from the definition alone."""
        raise TypeError(self.why_no_cut)

    @property
    def gap_of_event(self) -> str | None:
        """Null: the event belongs to no session."""
        if self.window.gap_sql is None:
            return None
        epoch = "TIMESTAMP'1970-01-01 00:00:00Z'"
        given = f"unix_micros({epoch} + try_cast(({self.window.gap_sql}) AS INTERVAL))"
        # `least` alone would take the longest for none.
        return f"CASE WHEN {given} IS NOT NULL THEN least({given}, {self._gap_us}L) END"

    @property
    def lateness(self) -> str:
        """By what would be the end of a session of its own."""
        return "late where event time + gap is at or before the watermark"

    @property
    def repair_unit(self) -> str:
        """All that it can make one."""
        return "the sessions of its key that touch it"

    @property
    def name(self) -> str:
        """By the kind of the window."""
        return f"{self.window.kind} windows"

    @property
    def _gap_of_one(self) -> str:
        return f"{self._gap_us}L" if self.window.gap_sql is None else GAP

    @property
    def _gap_us(self) -> int:
        return duration_ms(self.window.gap) * 1000
