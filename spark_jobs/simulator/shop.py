"""What to simulate."""

import hashlib
import random
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from spark_jobs.simulator.disorder import Disorder, Share
from spark_jobs.simulator.durations import Duration
from spark_jobs.simulator.streams import DEFAULT_STREAMS, STREAM_NAMES, StreamName, instant

HOUR_MS = 3_600_000


def _with_time_zone(start: datetime | None) -> datetime | None:
    if start is not None and start.tzinfo is None:
        raise ValueError(f"expected a time with its zone, got {start!r}; write 2024-05-01T00:00:00Z")
    return start


def _distinct(streams: tuple[StreamName, ...]) -> tuple[StreamName, ...]:
    if not streams or len(set(streams)) < len(streams):
        raise ValueError(f"expected at least one stream, each once, of {', '.join(STREAM_NAMES)}; got {streams!r}")
    return streams


class Shop(BaseModel):
    """A seeded shop. With `start` given, what it emits and in which order depends on this value alone.

    Attributes:
        seed: decides everything that is random.
        streams: which streams to emit, by default `DEFAULT_STREAMS`. A stream's events do not depend on which others
            are emitted.
        start: first instant of event time; None means 24 hours before now, rounded down to the hour.
        speed: seconds of event time per second of the clock, when paced.
        rate: events per second of the clock for `sales`, `clicks` and `request_logs`, on average; others run at a
            share of it (docs/guides/simulator.md), and what belongs to orders and visits follows from them. What has
            an interval of its own (`…_every`) does not depend on it. None means not paced: as fast as possible, only
            event time advances.
        density: events per second of *event* time, where `rate` is None. With a rate it is `rate / speed`.
        disorder: what happens to the events on their way.
        products: size of the catalogue ("p-001" …).
        users: people who click ("u-0001" …).
        guests: people who sit down in the café ("g-0001" …).
        customers: people who order ("cu-0001" …).
        machines: that are read ("m-01" …).
        symbols: of shares that are traded ("TID" …).
        riders: people who want to be driven ("r-0001" …).
        drivers: who drive them ("d-001" …).
        accounts: between which money moves ("a-0001" …).
        cards: that are paid with ("c-0001" …).
        product_change_every: event time between two changes of the catalogue, on average.
        customer_change_every: event time between two changes of the customers, on average.
        reading_every: event time between two readings of a machine.
        status_change_every: event time between two changes of what a machine does, on average.
        position_every: event time between two positions of a driver.
        unlisted: share of the products, and of the customers, that their stream leaves out at the start: half of
            them for ever, the others for 10 minutes to 6 hours. They are sold, and order, all the same.
        visit_updates: False: one complete row per visit. True: a row per step of the visit (seated, ordered,
            served, paid), each as far as known at that moment, emitted when the step happens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=42, ge=0)
    streams: Annotated[tuple[StreamName, ...], AfterValidator(_distinct)] = DEFAULT_STREAMS
    start: Annotated[datetime | None, AfterValidator(_with_time_zone)] = None
    speed: float = Field(default=60.0, gt=0)
    rate: float | None = Field(default=50.0, gt=0)
    density: float = Field(default=10.0, gt=0)
    disorder: Disorder = Disorder()
    products: int = Field(default=100, ge=1)
    users: int = Field(default=1_000, ge=1)
    guests: int = Field(default=500, ge=1)
    customers: int = Field(default=300, ge=1)
    machines: int = Field(default=10, ge=1)
    symbols: int = Field(default=8, ge=1)
    riders: int = Field(default=400, ge=1)
    drivers: int = Field(default=30, ge=1)
    accounts: int = Field(default=200, ge=1)
    cards: int = Field(default=400, ge=1)
    product_change_every: Duration = timedelta(minutes=10)
    customer_change_every: Duration = timedelta(minutes=10)
    reading_every: Duration = timedelta(seconds=5)
    status_change_every: Duration = timedelta(minutes=20)
    position_every: Duration = timedelta(seconds=20)
    unlisted: Share = 0.04
    visit_updates: bool = False

    @property
    def events_per_event_s(self) -> float:
        """Sales, and clicks, per second of event time."""
        return self.density if self.rate is None else self.rate / self.speed

    def start_ms(self, now_ms: int) -> int:
        """First instant of event time, in milliseconds since 1970-01-01 UTC."""
        if self.start is None:
            return (now_ms - 24 * HOUR_MS) // HOUR_MS * HOUR_MS
        return round(self.start.timestamp() * 1000)

    def dice(self, purpose: str) -> random.Random:
        """Random numbers for one purpose; the same for the same seed and purpose, on every machine."""
        return random.Random(f"{self.seed}/{purpose}")


def id_tag(seed: int, start_ms: int) -> str:
    """Six hex digits that keep the ids of runs with another seed or start apart."""
    return hashlib.sha256(f"{seed}/{start_ms}".encode()).hexdigest()[:6]


def run_stamp(seed: int, start_ms: int) -> str:
    """Names a run in file names, in an order that follows its start: `20240501T000000-s42`."""
    return f"{instant(start_ms):%Y%m%dT%H%M%S}-s{seed}"


def popularity(count: int, dice: random.Random) -> list[float]:
    """Cumulative shares of `count` things: a few are sought after, most are not (rank^-0.8, shuffled)."""
    shares = [(rank + 1) ** -0.8 for rank in range(count)]
    dice.shuffle(shares)
    total, running = sum(shares), 0.0
    cumulative = []
    for share in shares:
        running += share / total
        cumulative.append(running)
    cumulative[-1] = 1.0
    return cumulative
