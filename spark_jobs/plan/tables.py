"""The tables that a pipeline writes: the one place that knows how those beside the result are called."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["result", "late", "groups", "quarantine"]

_SUFFIXES: dict[Role, str] = {"late": "__late", "groups": "__groups", "quarantine": "__quarantine"}

_ASIDE = "__rebuilt"
_OF_RUN = re.compile(rf"{_ASIDE}(_[0-9a-f]+)?$")

RESERVED = (*_SUFFIXES.values(), _ASIDE)
"""What no table is called that a definition names: `spec.sources` refuses it."""


@dataclass(frozen=True)
class TableRef:
    """A table of a pipeline.

    Attributes:
        name: such as `gold.top_products__late`.
        role: `result`; `late`: events that came too late; `groups`: every group of a ranking that is updated;
            `quarantine`: rows that were set aside.
        keys: columns that identify a row; none where each row stands for itself.
        statistics: columns whose minimum and maximum each data file records.
    """

    name: str
    role: Role
    keys: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()


def beside(table: str, role: Role) -> str:
    """The name of a table with another role beside a result table."""
    return table + _SUFFIXES.get(role, "")


def aside(table: str, run: str) -> str:
    """Where a run builds the rows of a changed definition before they take the place of a table's.

    Args:
        table: whose rows they are to replace.
        run: such as `rebuild-0123456789ab`; another one builds elsewhere.
    """
    return f"{table}{_ASIDE}_{run.rpartition('-')[2]}"


def is_aside(table: str) -> bool:
    """Whether a table was built aside."""
    return _OF_RUN.search(table) is not None


def all_beside(table: str) -> Iterable[str]:
    """Every name that a pipeline with this result table may write."""
    return (table, *(f"{table}{suffix}" for suffix in _SUFFIXES.values()))


def result_of(table: str) -> tuple[str, Role]:
    """The result table that a table lies beside, and its role."""
    table = _OF_RUN.sub("", table)
    for role, suffix in _SUFFIXES.items():
        if table.endswith(suffix):
            return table.removesuffix(suffix), role
    return table, "result"
