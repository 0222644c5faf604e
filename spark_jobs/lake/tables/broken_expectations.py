"""Which expectations of severity `fail` the newest check of a table has found broken: what the monitor alerts about.

`_control/_expectations/<pipeline>/<number>.json`, see `records`. A record is written where that changes, and the newest
one counts.
"""

from collections.abc import Mapping
from datetime import datetime

from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.lake.tables.quality import Check
from spark_jobs.spec import is_name

_FOLDER = "_control/_expectations"


class BrokenExpectations(PersistedValue):
    """What is not as expected of a pipeline's table.

    Attributes:
        table: that was checked.
        expectations: name -> what was observed, in words without values of events; empty where all hold.
        since: of the check that found the first of them.
    """

    table: str
    expectations: Mapping[str, str] = {}
    since: datetime


def note(lake: Lake, check: Check) -> None:
    """Records what a check has found broken, if that has changed.

    An expectation that was not looked at, because there were no new rows, stays what it was.
    """
    records = _records(lake, check.pipeline)
    number, before = records.newest()
    known = dict(before.expectations) if before else {}
    kept = {name: said for name, said in known.items() if name in check.left_out}
    now = {**kept, **{each.expectation: each.observed for each in check.broken}}
    if now == known:
        return
    since = before.since if before and known else check.checked_at
    try:
        records.append(number + 1, BrokenExpectations(table=check.table, expectations=now, since=since))
    except RecordTakenError:
        return  # another check of the same table has just ended


def all_broken(lake: Lake) -> dict[str, BrokenExpectations]:
    """Pipeline -> what is not as expected of its table, of all of which something is; by name."""
    prefixes = lake.store.list_with_delimiter(f"{_FOLDER}/")["common_prefixes"]
    names = sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
    found = {name: _records(lake, name).newest()[1] for name in names if is_name(name)}
    return {name: broken for name, broken in found.items() if broken is not None and broken.expectations}


def _records(lake: Lake, pipeline: str) -> Records[BrokenExpectations]:
    return Records(lake, f"{_FOLDER}/{pipeline}", BrokenExpectations)
