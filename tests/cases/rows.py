"""Cases whose result is rows, not windows: what becomes of them by the rules, and what they expect."""

from collections.abc import Mapping
from typing import Any

from tests.cases.case import SIDES, Case, CaseRow, Verdict, key_of
from tests.cases.errors import CaseError
from tests.support import model

# What an expected row may say beside the place where it is written.
_OF_DEDUP = frozenset({"key", "value", "ts_ms", "arrival_order"})
_OF_JOIN = frozenset({"key", "ts_ms", *(f"{side}_{name}" for side in SIDES for name in ("value", "ts_ms"))})
_PLACE = frozenset({"batch", "emitted_after", "notes"})


def judged(case: Case) -> model.JudgedEvents:
    """What the model says of a case."""
    if case.kind == "dedup":
        return model.first_events(
            case.batches(), delay_ms=case.delay_ms + case.pipeline_grace_ms, within_ms=case.size_ms
        )
    left_ms, right_ms = (delay_ms + case.pipeline_grace_ms for delay_ms in case.delays_ms)
    return model.joined(
        case.batches(), delays_ms=(left_ms, right_ms), within_ms=case.within_ms, before_ms=case.before_ms
    )


def wanted_rows(case: Case, outcome: model.JudgedEvents) -> list[list[CaseRow]]:
    """The model's rows that the case wants, by batch."""
    data = iter(case.steps())
    after = 0
    batches = []
    for has_data, written in zip(outcome.has_data, outcome.written, strict=True):
        after = next(data).after if has_data else after
        rows = (case.row([_place(name) for name in row], after) for row in written)
        batches.append([row for row in rows if row is not None])
    return batches


def verdict_of(case: Case, outcome: model.JudgedEvents) -> Verdict:
    """The same in the words of cases."""
    rows = sorted(row for batch in wanted_rows(case, outcome) for row in batch)
    late = frozenset(case.orders[_place(name)] for name in outcome.of("late"))
    return Verdict((), (), late, frozenset(), tuple(rows), len(outcome.of("duplicate")))


def _place(name: str | None) -> int:
    return -1 if name is None else int(name.removeprefix("e"))


def by_other_row_rules(case: Case, rules: frozenset[str]) -> Verdict:
    """What the rules say with some differences applied: event by event, all in the case's own time."""
    rows: list[CaseRow | None] = []
    late: set[int] = set()
    duplicates = 0
    newest: dict[int, int] = {}
    watermark_ms: int | None = None
    remembered: dict[str | None, int] = {}
    kept: list[int] = []
    waiting: dict[int, int] = {}
    for step in case.steps():
        judging_ms = None if watermark_ms is None else watermark_ms - case.pipeline_grace_ms
        for index in step.events:
            time_ms, side = int(case.events[index]["ts_ms"]), case.side(index)
            at_once = "unmatched at once" in rules
            if case.fed in ("per_event", "per_batch"):
                newest[side] = max(newest.get(side, time_ms - case.delays_ms[side]), time_ms - case.delays_ms[side])
            if judging_ms is not None and "joined as long as it is kept" not in rules:
                strict = "in time at the watermark" in rules
                if time_ms < judging_ms or (time_ms == judging_ms and not strict):
                    late.add(case.orders[index])
                    continue
            if case.kind == "dedup":
                if case.key(index) in remembered:
                    duplicates += 1
                    continue
                remembered[case.key(index)] = time_ms + case.size_ms
                rows.append(CaseRow((index,), step.after))
                continue
            met = [other for other in kept if case.key(index) is not None and _meet(case, rules, index, other)]
            kept.append(index)
            for other in met:
                rows.append(case.row((other, index) if side else (index, other), step.after))
                waiting.pop(other, None)
            if not met and at_once:
                rows.append(case.row((-1, index) if side else (index, -1), step.after))
            elif not met:
                waiting[index] = time_ms + (case.before_ms if side else case.within_ms)
        if step.watermark_ms is not None:
            newest.update({side: max(newest.get(side, step.watermark_ms), step.watermark_ms) for side in step.sides})
        if len(newest) == len(case.sides) or (newest and "one stream time for both sides" in rules):
            watermark_ms = (max if "one stream time for both sides" in rules else min)(newest.values())
        if watermark_ms is None:
            continue
        over_ms = watermark_ms - case.pipeline_grace_ms
        if "keys kept for ever" not in rules:
            remembered = {key: until_ms for key, until_ms in remembered.items() if until_ms > over_ms}
        for index in [index for index, until_ms in waiting.items() if until_ms < over_ms]:
            del waiting[index]
            rows.append(case.row((-1, index) if case.side(index) else (index, -1), step.after))
    wanted = sorted(row for row in rows if row is not None)
    return Verdict((), (), frozenset(late), frozenset(), tuple(wanted), duplicates)


def _meet(case: Case, rules: frozenset[str], index: int, other: int) -> bool:
    """Whether an event matches one that came before it."""
    if case.side(index) == case.side(other) or case.key(index) != case.key(other):
        return False
    if "only looks back" in rules and int(case.events[other]["ts_ms"]) > int(case.events[index]["ts_ms"]):
        return False
    return case.matches(*((other, index) if case.side(index) else (index, other)))


def disagreement_of_rows(case: Case, verdict: Verdict) -> str | None:
    """In what the rows of a verdict are not those that the case expects."""
    left = [row for row in verdict.rows if not any(_fits(case, entry, row) for entry in case.unasserted)]
    batches = case.raw.get("emitted_after_batch") or ()
    for index, raw in enumerate(case.raw.get("expected") or ()):
        if any(unasserted.items() <= raw.items() for unasserted in case.unasserted):
            continue
        entry = {"batch": batches[index], **raw} if index < len(batches) else raw
        fitting = next((row for row in left if _fits(case, entry, row)), None)
        if fitting is None:
            return f"rows: expected {entry}, got {[_shown(case, row) for row in left]}"
        left.remove(fitting)
    if left:
        return f"rows: expected no more, got {[_shown(case, row) for row in left]}"
    duplicates = case.raw.get("duplicates")
    if duplicates is not None and duplicates != verdict.duplicates:
        return f"duplicates: expected {duplicates}, got {verdict.duplicates}"
    return None


def check_rows(case: Case) -> None:
    """Refuses expectations that nothing here compares.

    Raises:
        CaseError: naming them.
    """
    known = (_OF_JOIN if case.kind == "join" else _OF_DEDUP) | _PLACE
    for entry in (*(case.raw.get("expected") or ()), *case.unasserted):
        if unknown := sorted(entry.keys() - known):
            raise CaseError(f"expected: a row of a {case.kind} has no {unknown}, only {sorted(known)}")
    for name in ("expected_open", "partially_late"):
        if case.raw.get(name):
            raise CaseError(f"{name}: a {case.kind} has none, got {case.raw[name]}")


def _fits(case: Case, entry: Mapping[str, Any], row: CaseRow) -> bool:
    """Whether an expected row, as far as it says, is this one."""
    events = [case.events[index] if index >= 0 else None for index in row.members]
    there = [event for event in events if event is not None]
    said: list[tuple[Any, list[Any]]] = []
    if "key" in entry:
        said.append((key_of(entry), [key_of(there[0])]))
    if case.kind == "join":
        # A joined row of another engine has one time, the left or the later one; Tidemark's has both.
        if "ts_ms" in entry:
            said.append((entry["ts_ms"], [event["ts_ms"] for event in there]))
        for side, event in zip(SIDES, events, strict=True):
            for name in ("value", "ts_ms"):
                if f"{side}_{name}" in entry:
                    said.append((entry[f"{side}_{name}"], [None if event is None else event.get(name)]))
    else:
        said += [(entry[name], [there[0].get(name)]) for name in ("ts_ms", "value") if name in entry]
        if "arrival_order" in entry:
            said.append((entry["arrival_order"], [case.orders[row.members[0]]]))
    if entry.get("emitted_after") is not None:
        said.append((entry["emitted_after"], [row.emitted_after]))
    if entry.get("batch") is not None:
        said.append((entry["batch"], [case.events[case.orders.index(row.emitted_after)].get("batch")]))
    return all(wanted in found for wanted, found in said)


def _shown(case: Case, row: CaseRow) -> str:
    events = [dict(case.events[index]) if index >= 0 else None for index in row.members]
    return f"{events} after {row.emitted_after}"
