"""What the ledger of a pipeline must satisfy, as values: whoever shows or checks them need not know the operator."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.plan.tables import TableRef

FATES = ("on_time", "partly_late", "late", "duplicate", "quarantined", "unmatched", "filtered", "timeless", "history")
"""What may become of an event: each meets exactly one of these."""

EVENTS_UNIT = "events"
PAIRS_UNIT = "(event, window) pairs"


@dataclass(frozen=True)
class Equation:
    """`whole` = the sum of `parts`, plus what is left open.

    Attributes:
        unit: what is counted, such as `events`.
        whole: a term of the ledger.
        parts: terms of the ledger.
        open: what the rest is, where some of it may still wait in Spark's state: then it holds over an epoch, and the
            rest is never negative. None: it holds in each batch, without a rest.
        in_state: whether each row of Spark's state stands for one open thing at least, so that nothing is open where
            the state is empty, and no more rows are in state than are open.
    """

    unit: str
    whole: str
    parts: tuple[str, ...]
    open: str | None = None
    in_state: bool = False

    def describe(self) -> str:
        """The equation as a person reads it, in a line."""
        parts = [*self.parts, *([self.open] if self.open else [])]
        return f"{self.unit}: {self.whole} = {' + '.join(parts)}"


@dataclass(frozen=True)
class Invariant:
    """What a table must hold, by the ledger.

    Attributes:
        label: what is held against each other, such as `late`.
        table: the table.
        measure: a SQL aggregate over it (DuckDB).
        plus: terms whose sums the measure must be.
        minus: terms that are taken off.
        said: what the ledger says of them, such as `pairs judged`.
        of_epoch: whether only the rows of this epoch count, by their `_epoch`.
        where: further, the rows of the table that count; they are called `books` there.
        whole_table: whether all rows of the table must be of this epoch.
        open: what the rest is called where the table may hold less, because some still waits in Spark's state.
        late: a table that `where` reads as `late`: what a repair has counted after all is no part of the measure.
        replayed: a quarantine whose rows that were replayed `where` reads there, too, as left events.
    """

    label: str
    table: TableRef
    measure: str
    plus: tuple[str, ...]
    said: str
    minus: tuple[str, ...] = ()
    of_epoch: bool = False
    where: str = "true"
    whole_table: bool = False
    open: str | None = None
    late: TableRef | None = None
    replayed: TableRef | None = None

    def expected(self, terms: Mapping[str, int]) -> int:
        """What the measure must be, for the sums of these terms."""
        return sum(terms.get(name, 0) for name in self.plus) - sum(terms.get(name, 0) for name in self.minus)

    def describe(self) -> str:
        """The equation as a person reads it, in a line."""
        expected = " + ".join(self.plus) + "".join(f" - {name}" for name in self.minus)
        where = "" if self.where == "true" else f" where {self.where}"
        return f"{self.label}: {expected} = {self.measure} of {self.table.name}{where}"


BY_FATE = Equation(EVENTS_UNIT, "read", FATES)
"""Of every pipeline: each event that was read met one fate."""
