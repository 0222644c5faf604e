"""What becomes of a case by Tidemark's rules, and by those of other engines."""

from collections import Counter
from dataclasses import dataclass

from tests.cases.case import Case, CaseWindow, Verdict, key_of
from tests.cases.rows import by_other_row_rules, judged, verdict_of
from tests.support import model


def by_tidemarks_rules(case: Case) -> tuple[Verdict, model.Outcome | model.JudgedEvents]:
    """What the model says of a case, in the case's own time."""
    if not case.windowed:
        singly = judged(case)
        return verdict_of(case, singly), singly
    outcome = model.run(case.batches(), case.modelled_window, delay_ms=case.delay_ms, grace_ms=case.pipeline_grace_ms)
    data = iter(case.steps())
    after = None
    closed = []
    for batch in outcome.batches:
        after = next(data).after if batch.has_data else after
        closed += [found_by_model(case, row, after) for row in batch.closed]
    missed = Counter(pair.event_id for pair in outcome.late_pairs if case_has(case, pair.window_start_ms))
    late: set[int] = set()
    partly: set[int] = set()
    for index in range(len(case.events)):
        spans = case.modelled_window.spans(int(case.events[index]["ts_ms"]) + case.shift_ms)
        there = [span for span in spans if case_has(case, span.start_ms)]
        if count := missed[case.modelled(index).event_id]:
            (late if count == len(there) else partly).add(case.orders[index])
    kept = [window for window in closed if window.start_ms >= 0 or not case.has("no window before zero")]
    still = [found_by_model(case, row) for row in outcome.open if case_has(case, row.window_start_ms)]
    return Verdict(tuple(sorted(kept)), tuple(sorted(still)), frozenset(late), frozenset(partly)), outcome


def case_has(case: Case, start_ms: int) -> bool:
    """Whether the case's engine has a window that starts then (in the shifted time)."""
    return start_ms >= case.shift_ms or not case.has("no window before zero")


def found_by_model(case: Case, row: model.Row, after: int | None = None) -> CaseWindow:
    bits = int(row.sum)
    members = tuple(index for index in range(bits.bit_length()) if bits >> index & 1)
    end_ms = row.window_end_ms - case.shift_ms - (case.size_ms if case.inclusive_end else 0)
    return CaseWindow(str(row.key), row.window_start_ms - case.shift_ms, end_ms, members, after)


@dataclass
class _Open:
    start_ms: int
    end_ms: int
    members: list[int]
    closed: bool = False


def by_other_rules(case: Case, rules: frozenset[str]) -> Verdict:
    """What the rules say of a case with some differences of its engine applied; all in the case's own time."""
    if not case.windowed:
        return by_other_row_rules(case, rules)
    windows: dict[str, list[_Open]] = {}
    watermarks: dict[str, int] = {}
    closed: list[CaseWindow] = []
    late: set[int] = set()
    partly: set[int] = set()
    everything, grace_ms = "everything", case.pipeline_grace_ms

    def over(end_ms: int, watermark_ms: int | None) -> bool:
        if watermark_ms is None:
            return False
        strict = "session open at equality" in rules
        return end_ms + grace_ms < watermark_ms or (end_ms + grace_ms == watermark_ms and not strict)

    def touch(window: _Open, start_ms: int, end_ms: int) -> bool:
        if "apart at distance gap" in rules:
            return window.start_ms < end_ms and start_ms < window.end_ms
        return window.start_ms <= end_ms and start_ms <= window.end_ms

    for step in case.steps():
        before = dict(watermarks)
        for index in step.events:
            event, order = case.events[index], case.orders[index]
            key, time_ms = key_of(event), int(event["ts_ms"])
            watermark_key = key if "watermark by key" in rules else everything
            mine = windows.setdefault(key, [])
            spans = case.modelled_window.spans(time_ms)
            spans = [span for span in spans if span.start_ms >= 0 or not case.has("no window before zero")]
            missed = 0
            for start_ms, end_ms in spans:
                near = []
                if case.kind == "session":
                    again = "closed session joined again" in rules
                    near = [w for w in mine if (again or not w.closed) and touch(w, start_ms, end_ms)]
                else:
                    near = [w for w in mine if not w.closed and w.start_ms == start_ms]
                joined = "session judged after merging" in rules
                last_ms = max([end_ms, *(w.end_ms for w in near if joined)])
                if over(last_ms, before.get(watermark_key)):
                    missed += 1
                    continue
                merged = _Open(start_ms, end_ms, [index])
                for window in near:
                    mine.remove(window)
                    merged.start_ms = min(merged.start_ms, window.start_ms)
                    merged.end_ms = max(merged.end_ms, window.end_ms)
                    merged.members += window.members
                mine.append(merged)
            if missed:
                (late if missed == len(spans) else partly).add(order)
            if case.fed in ("per_event", "per_batch"):
                own = time_ms - case.delay_ms
                watermarks[watermark_key] = max(watermarks.get(watermark_key, own), own)
        if step.watermark_ms is not None:
            watermarks[everything] = max(watermarks.get(everything, step.watermark_ms), step.watermark_ms)
        for key, mine in windows.items():
            watermark_key = key if "watermark by key" in rules else everything
            for window in mine:
                if not window.closed and over(window.end_ms, watermarks.get(watermark_key)):
                    window.closed = True
                    closed.append(_other_found(case, key, window, step.after))
    still = [_other_found(case, key, w) for key, mine in windows.items() for w in mine if not w.closed]
    return Verdict(tuple(sorted(closed)), tuple(sorted(still)), frozenset(late), frozenset(partly))


def _other_found(case: Case, key: str, window: _Open, after: int | None = None) -> CaseWindow:
    end_ms = window.end_ms - (case.size_ms if case.inclusive_end else 0)
    return CaseWindow(key, window.start_ms, end_ms, tuple(sorted(window.members)), after)
