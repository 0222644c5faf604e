"""What every step says of itself, so that a pipeline can be checked without knowing its steps."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from spark_jobs.spec.base import Spec
from spark_jobs.spec.expressions import columns
from spark_jobs.spec.sources import Table

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline

RESULT_COLUMNS = frozenset({"window_start", "window_end", "final_after", "is_final", "revision", "revised_at", "rank"})
"""What Tidemark adds to results."""

Columns = frozenset[str] | None
"""Names of columns that are known; None: whatever the source table has, which Spark checks at the start."""

Origins = Mapping[str, frozenset[str]]
"""Column -> the columns of other tables that its value is computed from, such as `bronze.sales.quantity`."""

KnownColumns = Mapping[str, Iterable[str]]
"""Table -> its columns."""


def origins_of_table(table: Table, known: KnownColumns) -> Origins:
    """Of the columns that a source gives."""
    if table.select is None:
        return {name: frozenset({f"{table.name}.{name}"}) for name in known.get(table.name, ())}
    return {name: frozenset(f"{table.name}.{c}" for c in columns(sql)) for name, sql in table.select.items()}


def origins_of(names: Iterable[str], given: Origins) -> frozenset[str]:
    """What the columns of an expression are computed from; Spark finds them whatever their case."""
    wanted = {name.casefold() for name in names}
    return frozenset().union(*(origins for name, origins in given.items() if name.casefold() in wanted))


class StepSpec(Spec):
    """A step of a pipeline.

    Attributes:
        stateful: whether it remembers events from batch to batch. Steps before it see events, steps after it see what
            it gives.
        may_follow: kinds of stateful steps after which it may stand, where it is stateful itself.
    """

    stateful: ClassVar[bool] = False
    may_follow: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, /, *unnamed: Any, **fields: Any) -> None:
        super().__init__(*unnamed, **fields)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(what reads, the columns that it reads)."""
        return iter(())

    def tables(self) -> Iterable[Table]:
        """Tables that it reads beside the pipeline's source."""
        return ()

    def lookups(self) -> Iterable[str]:
        """Names of tables of which it takes the newest version in each batch."""
        return ()

    def adds(self) -> Iterable[str]:
        """Columns that it adds to those that are there."""
        return ()

    def gives(self, given: Columns) -> Columns:
        """The columns after it.

        Args:
            given: those before it.
        """
        return given and given | frozenset(self.adds())

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """From which columns of the lake those after it are computed.

        Args:
            given: of the columns before it.
            event_time: of the pipeline.
            known: columns of the tables that it reads.
        """
        return given

    def gives_in_order(self) -> Iterable[str]:
        """What the step keeps in Spark's state, in the order in which it does; nothing where the order is none."""
        return ()

    def check(self, pipeline: "Pipeline") -> None:
        """Refuses a pipeline that the step does not fit into.

        Raises:
            ValueError: that says what, and the way out.
        """


def refuse_result_columns(names: Iterable[str]) -> None:
    """Raises ValueError for a name that Tidemark gives itself."""
    for name in names:
        if name.casefold() in RESULT_COLUMNS:
            raise ValueError(f"{name!r} is a column that Tidemark adds to results: choose another name")
