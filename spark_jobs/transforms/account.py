"""What became of the events of a batch, counted over its narrow rows in the pass that computes it."""

from spark_jobs.plan.columns import FATE, LATE_US, SEQ, SOURCE, TIME
from spark_jobs.plan.lateness import LatenessRule, Never
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.observed_rows import Figure
from spark_jobs.transforms.events import FILTERED, HISTORY, QUARANTINED, UNMATCHED

EVENT = f"({SOURCE} IS NOT NULL AND {SEQ} IS NOT NULL)"
PASSED = f"({EVENT} AND {FATE} IS NULL AND {TIME} IS NOT NULL)"
HEARTBEATS = f"({SOURCE} IS NOT NULL AND {SEQ} IS NULL)"


SET_ASIDE = f"({EVENT} AND {FATE} = {QUARANTINED})"
"""Which narrow rows are those of events that a step could not use."""


def late_events(lateness: LatenessRule) -> str:
    """Which rows with `LATE_US` are those of events that were late, for a window at least; SQL."""
    return "false" if isinstance(lateness, Never) else f"({PASSED} AND {lateness.any_late(LATE_US)})"


def terms_of_events(plan: LogicalPlan, lateness: LatenessRule) -> list[Figure]:
    """The terms of the ledger that are counted over every event of the batch, of rows with `LATE_US`."""
    conditions: dict[str, str] = {
        "read": EVENT,
        "filtered": f"{EVENT} AND {FATE} = {FILTERED}",
        "unmatched": f"{EVENT} AND {FATE} = {UNMATCHED}",
        "quarantined": f"{EVENT} AND {FATE} = {QUARANTINED}",
        "timeless": f"{EVENT} AND {FATE} IS NULL AND {TIME} IS NULL",
        "heartbeats": HEARTBEATS,
        "on_time": PASSED,
    }
    if lateness.history is not None:
        conditions["history"] = f"{EVENT} AND {FATE} = {HISTORY}"
    if not plan.lookups:
        del conditions["unmatched"]
    if not plan.lookups and plan.table("quarantine") is None:
        del conditions["quarantined"]
    if not isinstance(lateness, Never):
        any_late, all_late = lateness.any_late(LATE_US), lateness.all_late(LATE_US)
        conditions["on_time"] = f"{PASSED} AND NOT {any_late}"
        conditions["late"] = f"{PASSED} AND {all_late}"
        if all_late != any_late:
            conditions["partly_late"] = f"{PASSED} AND {any_late} AND NOT {all_late}"
        if plan.grace_ms:
            published = lateness.any_late(f"({LATE_US} + {plan.grace_ms * 1000}L)")
            conditions["within_grace"] = f"{PASSED} AND NOT {any_late} AND {published}"
    if len(plan.sides) > 1:
        numbers = enumerate(side.name for side in plan.sides for _ in side.tables)
        of_side: dict[str, list[int]] = {}
        for number, name in numbers:
            of_side.setdefault(name, []).append(number)
        conditions |= {
            f"{name}_{term}": f"{sql} AND {SOURCE} IN ({', '.join(map(str, found))})"
            for name, found in of_side.items()
            for term, sql in conditions.items()
            if term in ("read", "filtered", "unmatched", "quarantined", "timeless", "on_time", "late")
        }
    counts = [Figure.count(name, sql) for name, sql in conditions.items()]
    if lateness.in_windows:
        counts.append(Figure("pairs", f"CASE WHEN {PASSED} THEN {lateness.pairs()} END"))
    return counts
