"""What a user calls the columns of Spark's state, where a definition tells."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.plan.columns import EVENTS
from spark_jobs.plan.operators import step_of
from spark_jobs.spec import Aggregate, Deduplicate, Pipeline

_CALL = re.compile(r"\s*(?P<function>[a-z_]+)\s*\((?P<argument>[^()]*)\)\s*", re.IGNORECASE)
# Function -> what Spark keeps for it, by its own names.
_KEPT = {
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
    "mean": ("sum", "count"),
}
_EMPTY = "isEmpty"
"""Beside the sum of decimals: whether nothing was added yet."""


@dataclass(frozen=True)
class Measure:
    """A measure, and where the state has it.

    Attributes:
        name: as the definition calls it.
        places: of its parts among the values of the state; two: what the one gives by the other.
    """

    name: str
    places: tuple[int, ...]


def keys_in_state(pipeline: Pipeline, operator: str) -> tuple[str, ...] | None:
    """The key columns of an operator's state; None: they have no names of a definition's.

    Args:
        pipeline: whose state it is.
        operator: by Spark's name.
    """
    if operator.startswith("dedupe"):
        return step_of(pipeline, Deduplicate).keys
    if operator.startswith(("stateStore", "sessionWindow")):
        return step_of(pipeline, Aggregate).by
    return None


def measures_in_state(pipeline: Pipeline, kept: Sequence[str]) -> tuple[Measure, ...] | None:
    """The measures of an aggregate; None: one of them is not simply a function's, and nobody can say which is which.

    Args:
        pipeline: that has it.
        kept: Spark's names of the state's values, in their order, without keys.
    """
    measures = step_of(pipeline, Aggregate).measures
    found, known, at = [], {}, 0
    for name, sql in measures.items():
        call = _CALL.fullmatch(sql)
        if call is None or (parts := _KEPT.get(call["function"].lower())) is None:
            return None
        # Spark keeps what two measures share once; of `count(*)` it makes `count(1)`.
        function = call["function"].lower().replace("mean", "avg")
        same = (function, "1" if call["argument"].strip() == "*" else "".join(call["argument"].split()))
        if same not in known:
            if tuple(kept[at : at + len(parts)]) != parts:
                return None
            known[same] = tuple(range(at, at + len(parts)))
            at += len(parts)
            if function == "sum" and kept[at : at + 1] == [_EMPTY]:
                at += 1
        found.append(Measure(name, known[same]))
    # How many events a group has stands last.
    if list(kept[at:]) != ["sum"]:
        return None
    return (*found, Measure(EVENTS, (at,)))
