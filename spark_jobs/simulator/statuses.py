"""The stream `statuses`: what the machines are doing, told when it changes."""

import heapq
from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.readings import machine_id
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import Event, Value

STATUSES = ("running", "idle", "maintenance", "stopped")
_SHARES = (0.6, 0.85, 0.95, 1.0)


def status_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `statuses`, in order of event time: each machine's at the start, then its changes, for ever."""
    machines = [_statuses_of(machine_id(number), shop, start_ms) for number in range(shop.machines)]
    return heapq.merge(*machines, key=lambda event: event.event_time_ms)


def _statuses_of(machine: str, shop: Shop, start_ms: int) -> Iterator[Event]:
    dice = shop.dice(f"statuses/{machine}")
    every_ms = max(1, whole_ms(shop.status_change_every))
    changed_at_ms, status = start_ms, STATUSES[0]
    for number in count():
        values: dict[str, Value] = {"machine_id": machine, "status": status, "changed_at": changed_at_ms}
        yield Event("statuses", changed_at_ms, f"{machine}@s{number}", machine, values)
        pick, others = dice.random(), [each for each in STATUSES if each != status]
        usual = next(name for name, upto in zip(STATUSES, _SHARES, strict=True) if pick < upto)
        status = usual if usual != status else others[int(dice.random() * len(others))]
        changed_at_ms += 1 + int(dice.expovariate(1 / every_ms))
