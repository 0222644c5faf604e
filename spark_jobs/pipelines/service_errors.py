"""How services do, minute by minute: requests, errors, latency; and incidents: three bad minutes open one, three good
ones close it.

A log line that is sent twice counts twice.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from tidemark import (
    Aggregate,
    Between,
    Conservation,
    NotNull,
    OneOf,
    Pipeline,
    Process,
    Processor,
    Row,
    Select,
    Sink,
    State,
    Table,
    Timers,
    Tumbling,
    Unique,
    Watermark,
)

LOGS = Table("bronze.request_logs")
DELAY = Watermark(delay="2 minutes")

service_errors = Pipeline(
    name="service_errors",
    source=LOGS,
    event_time="requested_at",
    watermark=DELAY,
    steps=(
        Aggregate(
            window=Tumbling("1 minute"),
            by=("service",),
            measures={
                "requests": "count(*)",
                "errors": "count_if(status_code >= 500)",
                "p99_ms": "percentile(latency_ms, 0.99)",
            },
        ),
        Select({"error_rate": "errors / requests"}),
    ),
    sink=Sink("gold.service_errors"),
    expectations=(
        NotNull("service"),
        Between("error_rate", min=0, max=1),
        Between("p99_ms", min=0),
        Unique("window_start", "service"),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="Requests, error rate and latency of each service, minute by minute.",
    owner="operations",
    column_descriptions={
        "service": "Which service answered.",
        "requests": "Requests of the minute.",
        "errors": "Of these, answered with a status from 500 on.",
        "p99_ms": "99 of 100 were answered within so many milliseconds; interpolated.",
        "error_rate": "Errors per request.",
    },
)

MINUTE = timedelta(minutes=1)
BAD = 0.1
IN_A_ROW = 3


class Incidents(Processor):
    """Counts the requests of a minute, and bad and good minutes in a row. A minute without requests says nothing."""

    output: ClassVar = {
        "change": "STRING",
        "since": "TIMESTAMP",
        "requests": "BIGINT",
        "errors": "BIGINT",
    }
    state: ClassVar = {
        "minute": "TIMESTAMP",
        "requests": "BIGINT",
        "errors": "BIGINT",
        "is_open": "BOOLEAN",
        "since": "TIMESTAMP",
        "run": "INT",
        "run_requests": "BIGINT",
        "run_errors": "BIGINT",
    }

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        minute = event["requested_at"].replace(second=0, microsecond=0)
        if state["minute"] not in (None, minute):
            # The first request of the next minute, at the very instant at which this one ends.
            yield from self._end(state)
        if state["minute"] is None:
            state.update(minute=minute, requests=0, errors=0)
            timers.set("end", minute + MINUTE)
        state["requests"] += 1
        state["errors"] += event["status_code"] >= 500

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        yield from self._end(state)

    def _end(self, state: State) -> Iterator[Row]:
        """What becomes of a minute that is over."""
        requests, errors, minute = state["requests"], state["errors"], state["minute"]
        state.update(minute=None, requests=None, errors=None)
        is_open = bool(state["is_open"])
        if (errors / requests > BAD) == is_open:
            # As it has been: what has begun otherwise is no run.
            state.update(run=None, run_requests=None, run_errors=None, since=state["since"] if is_open else None)
            return
        run = (state["run"] or 0) + 1
        state.update(
            run=run,
            run_requests=(state["run_requests"] or 0) + requests,
            run_errors=(state["run_errors"] or 0) + errors,
            since=state["since"] or minute,
        )
        if run < IN_A_ROW:
            return
        yield {
            "change": "closed" if is_open else "opened",
            "since": state["since"],
            "requests": state["run_requests"],
            "errors": state["run_errors"],
        }
        since = None if is_open else state["since"]
        state.update(is_open=not is_open or None, since=since, run=None, run_requests=None, run_errors=None)


service_incidents = Pipeline(
    name="service_incidents",
    source=LOGS,
    event_time="requested_at",
    watermark=DELAY,
    steps=(Process(Incidents, by=("service",)),),
    sink=Sink("gold.service_incidents"),
    expectations=(
        NotNull("service"),
        OneOf("change", ("opened", "closed")),
        Between("requests", min=3),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="Incidents of services: a row after three bad minutes in a row, one after three good ones.",
    owner="operations",
    column_descriptions={
        "service": "Which service it is.",
        "requested_at": "The end of the third minute, UTC.",
        "change": "opened or closed.",
        "since": "The first bad minute of the incident, UTC.",
        "requests": "Requests of these three minutes.",
        "errors": "Of these, answered with a status from 500 on; a minute is bad above one in ten.",
    },
)
