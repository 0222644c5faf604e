"""What a case expects, held against a verdict; and which differences explain it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from tests.cases.case import Case, CaseError, Found, Verdict, key_of
from tests.cases.differences import AS_WRITTEN, DIFFERENCES
from tests.cases.rules import by_other_rules


def disagreement(case: Case, verdict: Verdict) -> str | None:
    """In what a verdict is not what the case expects; None where it is."""
    raw = case.raw
    firings: dict[tuple[str, int, int], list[Any]] = {}
    for entry in raw.get("expected") or ():
        firings.setdefault(_place(entry), []).append(case.normal(entry.get("value")))
    ours = {(found.key, found.start_ms, found.end_ms): found for found in verdict.closed}
    if case.explicit_lateness:
        problem = _disagreement_of_firings(case, firings, verdict)
    else:
        last = {place: values[-1] for place, values in firings.items()}
        problem = differ("windows", {place: case.value(found.members) for place, found in ours.items()}, last)
        problem = problem or _emitted_otherwise(case, ours)
    if problem is None and raw.get("expected_open") is not None and not case.explicit_lateness:
        still = {(w.key, w.start_ms, w.end_ms): case.value(w.members) for w in verdict.open}
        wanted = {_place(entry): case.normal(entry.get("value")) for entry in raw["expected_open"]}
        problem = differ("open windows", still, wanted)
    if problem is None and raw.get("expected_late") is not None:
        problem = differ("late events", sorted(verdict.late), _orders(case, raw["expected_late"]))
    if problem is None and raw.get("partially_late") is not None:
        problem = differ("partly late events", sorted(verdict.partly_late), _orders(case, raw["partially_late"]))
    return problem


def _disagreement_of_firings(
    case: Case, firings: Mapping[tuple[str, int, int], list[Any]], verdict: Verdict
) -> str | None:
    """Final rows against what fired: the last firing is the final row, or all of them together are."""
    ours = {(w.key, w.start_ms, w.end_ms): w.members for w in (*verdict.closed, *verdict.open)}
    closed = {(w.key, w.start_ms, w.end_ms) for w in verdict.closed}
    unfired = sorted(closed - firings.keys())
    if unfired:
        return f"windows: {unfired} are final, and never fired"
    for (key, start_ms, end_ms), values in firings.items():
        members = ours.get((key, start_ms, end_ms))
        if members is not None:
            # Sessions fire under the bounds that they have by then: those count that grew into this one.
            parts = [
                value
                for (k, start, end), fired in firings.items()
                for value in fired
                if k == key and start_ms <= start and end <= end_ms
            ]
            value = case.value(members)
            if value not in (values[-1], _together(case, values), _together(case, parts)):
                return f"windows: expected {values} for {key} [{start_ms}, {end_ms}), got {value}"
        elif not any(k == key and start <= start_ms and end_ms <= end for k, start, end in ours):
            return f"windows: {key} [{start_ms}, {end_ms}) fired, and is part of none"
    return None


def _together(case: Case, values: Sequence[Any]) -> Any:
    if case.agg in ("count", "sum"):
        return sum(values)
    if case.agg in ("max", "min"):
        return (max if case.agg == "max" else min)(values)
    return case.normal([item for value in values for item in value])


def _emitted_otherwise(case: Case, ours: Mapping[tuple[str, int, int], Found]) -> str | None:
    numbers = [event.get("batch") for event in case.events]
    batches = case.raw.get("emitted_after_batch") or ()
    for index, entry in enumerate(case.raw.get("expected") or ()):
        after = ours[_place(entry)].emitted_after
        wanted = entry.get("emitted_after")
        if wanted is None and index < len(batches) and after is not None:
            wanted, after = batches[index], numbers[case.orders.index(after)]
        if wanted is not None and wanted != after:
            return f"windows: expected {_place(entry)} after {wanted}, got it after {after}"
    return None


def _place(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    return key_of(entry), int(entry["start_ms"]), int(entry["end_ms"])


def _orders(case: Case, entries: Iterable[Mapping[str, Any]]) -> list[int]:
    left = list(range(len(case.events)))
    orders = []
    for entry in entries:
        named = [i for i in left if entry.get("arrival_order") in (None, case.orders[i])]
        fits = [i for i in named if all(case.events[i].get(name) == entry.get(name) for name in ("key", "ts_ms"))]
        if not fits:
            raise CaseError(f"the case names an event that it does not have: {entry}")
        left.remove(fits[0])
        orders.append(case.orders[fits[0]])
    return sorted(orders)


def differ(what: str, ours: Any, wanted: Any) -> str | None:
    if isinstance(ours, dict):
        missing = {place: value for place, value in wanted.items() if ours.get(place, ...) != value}
        surplus = {place: value for place, value in ours.items() if wanted.get(place, ...) != value}
        return f"{what}: expected {missing}, got {surplus}" if missing or surplus else None
    return None if ours == wanted else f"{what}: expected {wanted}, got {ours}"


def explanation(case: Case, verdict: Verdict) -> list[str]:
    """The differences by which a case follows from Tidemark's rules; as few as will do.

    Raises:
        CaseError: if none of its engine's explain what it expects.
    """
    used = [name for name in AS_WRITTEN if case.has(name) and _matters(case, name)]
    if case.explicit_lateness and case.has("fires before it is final"):
        used.append("fires before it is final")
    problem = disagreement(case, verdict)
    if problem is None:
        return used
    names = [name for name in DIFFERENCES if case.has(name) and name not in AS_WRITTEN]
    for count in range(1, len(names) + 1):
        for rules in combinations(names, count):
            if disagreement(case, by_other_rules(case, frozenset(rules))) is None:
                return [*used, *(name for name in rules if name not in used)]
    raise CaseError(problem)


def _matters(case: Case, name: str) -> bool:
    if name == "end of a session":
        return case.inclusive_end
    if name == "no window before zero":
        return any(span.start_ms < 0 for t in case.times() for span in case.modelled_window.spans(t))
    return case.fed == "explicit"
