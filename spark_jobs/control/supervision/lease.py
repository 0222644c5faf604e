"""The supervisors' lease: of those that watch a lake one is active, the others stand by, on any host.

`_control/_supervisor/leases/<number>.json` says who holds it. The holder renews it by overwriting
`_control/_supervisor/renewals/<number>.json`, which nobody else writes. Whoever stands by watches that object: if it
does not change for the length of the lease, by its own clock, it creates the next lease; of several exactly one does.
"""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import obstore
from obstore.exceptions import NotFoundError
from pydantic import ValidationError

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.folders import objects_in
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.health import refuse_vanished
from spark_jobs.lake.store.records import Records, RecordTakenError

LEASE_S = 15.0

GONE = timedelta(seconds=4 * LEASE_S)
"""A lease that has not been renewed for so long: its supervisor is gone, and no other one stood by."""

_FOLDER = f"{CONTROL}/_supervisor"


class Holder(PersistedValue):
    """Who holds the lease.

    Attributes:
        id: of the supervisor.
        host: where it runs.
        pid: of its process.
        since: when it took the lease.
    """

    id: str
    host: str
    pid: int
    since: datetime


class _Renewal(PersistedValue):
    sequence: int
    at: datetime
    released: bool = False


class Lease:
    """One supervisor's side of the lease.

    Args:
        lake: which it watches.
        host: where it runs.
        pid: of its process.
        clock: seconds that only grow.
    """

    def __init__(self, lake: Lake, *, host: str, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.id = f"{host}/{pid}/{uuid.uuid4().hex[:6]}"
        self._lake = lake
        self._host = host
        self._pid = pid
        self._clock = clock
        self._records = _holders(lake)
        self._number: int | None = None
        self._sequence = 0
        self._watched: tuple[int, int] | None = None
        self._unchanged_since = 0.0
        self._renewed_at = 0.0

    def hold(self) -> bool:
        """Renews the lease, or takes it if its holder is gone; whether this supervisor is the active one."""
        number, holder = self._records.newest()
        if self._number is not None and number == self._number:
            if self._clock() - self._renewed_at >= LEASE_S / 5:
                self._renew(number)
            return True
        self._number = None
        if holder is not None and not self._is_over(number):
            return False
        try:
            mine = Holder(id=self.id, host=self._host, pid=self._pid, since=datetime.now(UTC))
            self._records.append(number + 1, mine)
        except RecordTakenError:
            return False
        self._number = number + 1
        self._renew(self._number)
        self._forget(before=number)
        return True

    def release(self) -> None:
        """Lets another supervisor take over at once."""
        if self._number is not None:
            self._renew(self._number, released=True)
            self._number = None

    def holder(self) -> Holder | None:
        """Who holds it now, or held it last."""
        return self._records.newest()[1]

    def _renew(self, number: int, *, released: bool = False) -> None:
        refuse_vanished(self._lake)
        self._sequence += 1
        renewal = _Renewal(sequence=self._sequence, at=datetime.now(UTC), released=released)
        self._lake.store.put(_renewal_path(number), renewal.model_dump_json().encode())
        self._renewed_at = self._clock()

    def _forget(self, *, before: int) -> None:
        entries = objects_in(self._lake, f"{_FOLDER}/renewals")
        old = [entry["path"] for entry in entries if entry["path"] < _renewal_path(before)]
        if old:
            self._lake.store.delete(old)

    def _is_over(self, number: int) -> bool:
        renewal = _renewal(self._lake, number)
        if renewal is not None and renewal.released:
            return True
        seen = (number, renewal.sequence if renewal else 0)
        if seen != self._watched:
            self._watched, self._unchanged_since = seen, self._clock()
        return self._clock() - self._unchanged_since >= LEASE_S


def _renewal(lake: Lake, number: int) -> _Renewal | None:
    try:
        return _Renewal.model_validate_json(bytes(obstore.get(lake.store, _renewal_path(number)).bytes()))
    except (NotFoundError, FileNotFoundError, ValidationError):
        return None  # or not whole, as after a loss of power


def _renewal_path(number: int) -> str:
    return f"{_FOLDER}/renewals/{number:06d}.json"


def last_holder(lake: Lake) -> Holder | None:
    """Who holds the lease or held it last; None where no supervisor has ever watched this lake."""
    return _holders(lake).newest()[1]


def last_renewal(lake: Lake) -> datetime | None:
    """When the lease was last renewed, or given back; None where no supervisor has ever watched this lake."""
    number, holder = _holders(lake).newest()
    if holder is None:
        return None
    renewal = _renewal(lake, number)
    return renewal.at if renewal else holder.since


def _holders(lake: Lake) -> Records[Holder]:
    return Records(lake, f"{_FOLDER}/leases", Holder)


def active_supervisor(lake: Lake) -> tuple[Holder, datetime] | None:
    """Who holds the lease and when it was last renewed; None where nobody does."""
    number, holder = _holders(lake).newest()
    renewal = _renewal(lake, number) if holder else None
    if holder is None or renewal is None or renewal.released:
        return None
    return holder, renewal.at
