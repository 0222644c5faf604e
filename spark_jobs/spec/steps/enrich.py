"""Columns looked up in a table that changes slowly."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from spark_jobs.spec.base import FROZEN
from spark_jobs.spec.expressions import PlainColumn, check_column_names
from spark_jobs.spec.sources import TableName
from spark_jobs.spec.steps.base import KnownColumns, Origins, StepSpec, refuse_result_columns


class Enrich(StepSpec):
    """Adds columns of a table of the lake, looked up by key, to each event.

    Each batch takes the newest version of the table, and the ledger notes which. The table is sent to every task, so it
    must fit in memory; it has each key once.

    Attributes:
        table: such as `silver.products`.
        on: columns that events and the table both have; null finds nothing.
        columns: new column -> column of the table.
        missing: what becomes of an event whose key the table does not have: `null`: the new columns are null; `drop`:
            it is counted as `unmatched`; `quarantine`: it is kept in `<result>__quarantine`.
    """

    kind: Literal["enrich"] = "enrich"
    table: TableName
    on: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    columns: Annotated[Mapping[str, PlainColumn], Field(min_length=1), FROZEN]
    missing: Literal["null", "drop", "quarantine"] = "null"

    def __init__(self, table: str, **options: object) -> None:
        super().__init__(table=table, **options)

    @field_validator("columns")
    @classmethod
    def _names_are_free(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(columns)
        refuse_result_columns(columns)
        return columns

    def lookups(self) -> Iterable[str]:
        """The table in which it looks columns up."""
        return (self.table,)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key."""
        yield "Enrich on", self.on

    def adds(self) -> Iterable[str]:
        """The columns that it takes from the table."""
        return tuple(self.columns)

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """The columns of the table."""
        return {**given, **{name: frozenset({f"{self.table}.{column}"}) for name, column in self.columns.items()}}
