"""What a case expects, held against a verdict; and which differences explain it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from tests.cases.case import Case, CaseWindow, Verdict, key_of
from tests.cases.differences import AS_WRITTEN, DIFFERENCES
from tests.cases.errors import CaseError
from tests.cases.rows import disagreement_of_rows
from tests.cases.rules import by_other_rules

Place: TypeAlias = tuple[str, int, int]
"""Of a window: key, start, end."""


def disagreement(case: Case, verdict: Verdict) -> str | None:
    """In what a verdict is not what the case expects; None where it is."""
    raw = case.raw
    problem = None
    if not case.late_only:
        problem = _disagreement_of_windows(case, verdict) if case.windowed else disagreement_of_rows(case, verdict)
    if problem is None and raw.get("expected_late") is not None:
        problem = differ("late events", sorted(verdict.late), _orders(case, raw["expected_late"]))
    if problem is None and raw.get("partially_late") is not None:
        problem = differ("partly late events", sorted(verdict.partly_late), _orders(case, raw["partially_late"]))
    return problem


def _disagreement_of_windows(case: Case, verdict: Verdict) -> str | None:
    firings: dict[Place, list[Any]] = {}
    for entry in case.raw.get("expected") or ():
        if _judged(case, _place(entry)):
            firings.setdefault(_place(entry), []).append(case.normal(entry.get("value")))
    closed = {_place_of(found): found for found in verdict.closed if _judged(case, _place_of(found))}
    still = {_place_of(found): found for found in verdict.open if _judged(case, _place_of(found))}
    if case.explicit_lateness:
        return _disagreement_of_firings(case, firings, closed, still)
    last = {place: values[-1] for place, values in firings.items()}
    problem = differ("windows", {place: case.value(found.members) for place, found in closed.items()}, last)
    problem = problem or _emitted_otherwise(case, closed)
    if problem is None and case.raw.get("expected_open") is not None:
        wanted = {_place(entry): case.normal(entry.get("value")) for entry in case.raw["expected_open"]}
        wanted = {place: value for place, value in wanted.items() if _judged(case, place)}
        problem = differ("open windows", {place: case.value(found.members) for place, found in still.items()}, wanted)
    return problem


def _judged(case: Case, place: Place) -> bool:
    """Whether the case judges a window: not if it is one of those that it names as unasserted, as far as it says."""
    key, start_ms, end_ms = place
    for entry in case.unasserted:
        own = {"start_ms": start_ms, "end_ms": end_ms} | ({"key": key} if "key" in entry else {})
        said = {**entry, "key": key_of(entry)}
        named = [name for name in own if name in entry]
        if not named:
            raise CaseError(f"unasserted: expected windows by key, start_ms or end_ms, got {dict(entry)}")
        if all(said[name] == own[name] for name in named):
            return False
    return True


def _disagreement_of_firings(
    case: Case,
    firings: Mapping[Place, list[Any]],
    closed: Mapping[Place, CaseWindow],
    still: Mapping[Place, CaseWindow],
) -> str | None:
    """Final rows against what fired: the last firing is the final row, or all of them together are."""
    ours = {place: found.members for place, found in {**closed, **still}.items()}
    unfired = sorted(closed.keys() - firings.keys())
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


def _emitted_otherwise(case: Case, ours: Mapping[Place, CaseWindow]) -> str | None:
    numbers = [event.get("batch") for event in case.events]
    batches = case.raw.get("emitted_after_batch") or ()
    for index, entry in enumerate(case.raw.get("expected") or ()):
        if not _judged(case, _place(entry)):
            continue
        after = ours[_place(entry)].emitted_after
        wanted = entry.get("emitted_after")
        if wanted is None and index < len(batches) and after is not None:
            wanted, after = batches[index], numbers[case.orders.index(after)]
        if wanted is not None and wanted != after:
            return f"windows: expected {_place(entry)} after {wanted}, got it after {after}"
    return None


def _place(entry: Mapping[str, Any]) -> Place:
    return key_of(entry), int(entry["start_ms"]), int(entry["end_ms"])


def _place_of(found: CaseWindow) -> Place:
    return found.key, found.start_ms, found.end_ms


def _orders(case: Case, entries: Iterable[Mapping[str, Any]]) -> list[int]:
    left = list(range(len(case.events)))
    orders = []
    for entry in entries:
        named = [i for i in left if entry.get("arrival_order") in (None, case.orders[i])]
        names = [name for name in ("key", "ts_ms", "side") if name != "side" or name in entry]
        fits = [i for i in named if all(case.events[i].get(name) == entry.get(name) for name in names)]
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
    if name == "join without an end":
        return None in case.reach
    if name == "end of a session":
        return case.inclusive_end
    if name == "no window before zero":
        return any(span.start_ms < 0 for t in case.times() for span in case.modelled_window.spans(t))
    return case.fed == "explicit"
