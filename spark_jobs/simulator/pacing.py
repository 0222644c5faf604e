"""When an arrival is due, and when a run is over."""

import threading

from spark_jobs.simulator.arrivals import Arrival
from spark_jobs.simulator.clock import Clock
from spark_jobs.simulator.progress import StopReason
from spark_jobs.simulator.shop import Shop


class Pacing:
    """Lets event time run `speed` times faster than the clock, from the moment of construction.

    A run that starts in the past never overtakes the clock: once event time has caught up, both advance
    together. Without a rate everything is due at once.

    Args:
        shop: rate and speed.
        start_ms: first instant of event time.
        clock: what to go by.
        tick_s: seconds between two looks at the clock.
        duration_s: seconds until the end; None: no end.
        stop: ends the run when set.
    """

    def __init__(
        self,
        shop: Shop,
        start_ms: int,
        clock: Clock,
        *,
        tick_s: float,
        duration_s: float | None,
        stop: threading.Event | None,
    ) -> None:
        self._paced, self._speed, self._start_ms, self._clock = (
            shop.rate is not None,
            shop.speed,
            start_ms,
            clock,
        )
        self._tick_s, self._duration_s = tick_s, duration_s
        self._stop = stop or threading.Event()
        self._began_s = self._ticked_s = clock.monotonic_s()
        self._in_the_past = start_ms <= clock.now_ms()
        self._due_ms = start_ms
        self._frozen = False
        self.caught_up = False

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic_s() - self._began_s

    def is_due(self, row: Arrival) -> bool:
        """Whether the row has arrived by now, or by the moment at which time was stopped."""
        if not self._paced or row.after_end or row.arrival_ms <= self._due_ms:
            return True
        if not self._frozen:
            self._advance()
        return row.arrival_ms <= self._due_ms

    def freeze(self) -> None:
        """Stops event time at this moment."""
        self._advance()
        self._frozen = True

    def _advance(self) -> None:
        self._due_ms = self._start_ms + int(self.elapsed_s() * self._speed * 1000)
        now_ms = self._clock.now_ms()
        self.caught_up = self._in_the_past and self._due_ms >= now_ms
        if self.caught_up:
            self._due_ms = now_ms

    def wait_a_tick(self) -> None:
        """Waits for the next look at the clock, not beyond the end of the run."""
        left_s = self._tick_s if self._duration_s is None else self._duration_s - self.elapsed_s()
        if left_s > 0:
            self._clock.wait(self._stop, min(self._tick_s, left_s))
        self._ticked_s = self._clock.monotonic_s()

    def tick_has_passed(self) -> bool:
        """Whether a tick went by since the last wait or the last yes."""
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s < self._tick_s:
            return False
        self._ticked_s = now_s
        return True

    def ended_by(self) -> StopReason | None:
        """Why the run is over, if it is."""
        if self._stop.is_set():
            return "stop"
        if self._duration_s is not None and self.elapsed_s() >= self._duration_s:
            return "duration"
        return None
