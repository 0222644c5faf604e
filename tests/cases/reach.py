"""How far apart two events of a join may be, as a case tells it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.cases.errors import CaseError

_TIME = r"(left|right)\.(?:ts|ts_ms|time|event_time)"
_COMPARISON = re.compile(rf"{_TIME}\s*(<=|>=|<|>|==?)\s*{_TIME}\s*(?:([+-])\s*(\d+))?")
_SAME_KEY = re.compile(r"(left|right)\.key\s*==?\s*(left|right)\.key")
_NO_BOUNDS = frozenset({"agg", "bounds", "grace_ms", "join_type", "left_delay_ms", "right_delay_ms", "watermark_model"})
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


class Reach(NamedTuple):
    """Bounds of `right time - left time`, in ms and inclusive; None where there is no bound."""

    lowest: int | None
    highest: int | None


def reach(params: Mapping[str, Any]) -> Reach:
    """The bounds of a case: as `before_ms` and `after_ms`, or as a `condition`; a missing one of the two is 0.

    Raises:
        CaseError: if the case says it in other words.
    """
    if params.get("condition") is not None:
        return _of_condition(params["condition"])
    before_ms, after_ms = params.get("before_ms"), params.get("after_ms")
    if before_ms is None and after_ms is None:
        # Only of a case that says nothing at all can it be told that it has no bounds.
        others = sorted(name for name, value in params.items() if value is not None and name not in _NO_BOUNDS)
        if others:
            raise CaseError(f"params: expected before_ms and after_ms, or a condition, of a join, got {others}")
        return Reach(None, None)
    return Reach(-int(before_ms or 0), int(after_ms or 0))


def _of_condition(condition: str) -> Reach:
    lowest, highest = [], []
    for clause in re.split(r"\s+and\s+|\s*&&\s*", condition.strip(), flags=re.IGNORECASE):
        if _SAME_KEY.fullmatch(clause):
            continue
        found = _COMPARISON.fullmatch(clause)
        if found is None or found[1] == found[3]:
            raise CaseError(
                f"condition: expected clauses such as 'left.ts <= right.ts + 5000', joined with AND, got {clause!r}"
            )
        operator = found[2].removeprefix("=") or "="
        offset_ms = int(f"{found[4] or '+'}{found[5] or 0}")
        if found[1] == "left":
            # left <= right + x is right - left >= -x.
            operator, offset_ms = _TURNED[operator], -offset_ms
        if operator in (">", ">=", "="):
            lowest.append(offset_ms + (operator == ">"))
        if operator in ("<", "<=", "="):
            highest.append(offset_ms - (operator == "<"))
    return Reach(max(lowest, default=None), min(highest, default=None))
