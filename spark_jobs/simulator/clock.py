"""The clock that paces a simulation."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What pacing needs of a clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def monotonic_s(self) -> float:
        """Seconds since some moment, never going back."""

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Returns after so many seconds, at once when `stop` is set."""


class SystemClock:
    """The clock of this machine, by which events are emitted."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since some moment, never going back."""
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Returns after so many seconds, at once when `stop` is set."""
        stop.wait(seconds)


SYSTEM_CLOCK = SystemClock()
