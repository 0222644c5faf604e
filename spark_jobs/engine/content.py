"""Whether a batch failed for what its rows hold: then it fails again whenever it is tried again."""

import re
from collections.abc import Sequence

from spark_jobs.engine.failures import may_quote_values
from spark_jobs.spark.throwables import Thrown

# By SQL's standard, class 22 is for data that cannot be computed with, 23 for rows that a constraint forbids; P0001 is
# what an expression raises that a user wrote. Spark keeps to that: an error of its disks, memory or plans has another.
_STATES = re.compile(r"22(?!KD)|23(?!K)|P0001")

# What Spark has put elsewhere, and some that are of the settings or of the state.
_CONDITIONS = re.compile(r"(COLLECTION_SIZE_LIMIT_EXCEEDED|INCONSISTENT_BEHAVIOR_CROSS_VERSION|NOT_NULL_ASSERT)")
_OTHERS = re.compile(r"(INVALID_CONF_VALUE|MALFORMED_STATE)")


def condition_of(found: Sequence[Thrown]) -> str | None:
    """What Spark calls the fault of the rows at which a batch failed; None: it failed for another reason.

    Args:
        found: the error and its causes.
    """
    # A file that cannot be read, or memory that is short, may come out as anything further in or out.
    if not all(may_quote_values(each.kind) for each in found):
        return None
    # The innermost is nearest to the row.
    return next((each.condition for each in reversed(found) if each.condition and _is_of_content(each)), None)


def _is_of_content(each: Thrown) -> bool:
    condition = each.condition or ""
    if _OTHERS.match(condition):
        return False
    return _STATES.match(each.state or "") is not None or _CONDITIONS.match(condition) is not None
