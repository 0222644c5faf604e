"""The suite of a table: every expectation that its definition states."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spark_jobs.spec import Definition, Ingest, RowRule, TableExpectation
from spark_jobs.spec.expressions import columns


@dataclass(frozen=True)
class RowCheck:
    """A rule on each row, as the check of a table applies it.

    Attributes:
        rule: that the definition states.
        severity: what a broken one does to the check.
    """

    rule: RowRule
    severity: str

    @property
    def name(self) -> str:
        """What results call it."""
        return self.rule.name

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that its condition reads."""
        return tuple(sorted(columns(self.rule.condition)))


@dataclass(frozen=True)
class Suite:
    """Expectations of one table.

    Attributes:
        definition: that states them, and writes the table.
        rows: on each row.
        tables: on the table as a whole.
    """

    definition: Definition
    rows: tuple[RowCheck, ...]
    tables: tuple[TableExpectation, ...]

    @property
    def pipeline(self) -> str:
        """The name of the pipeline that writes the table."""
        return self.definition.name

    @property
    def table(self) -> str:
        """The result table, or bronze."""
        return self.definition.sink.table

    @property
    def event_time(self) -> str | None:
        """When an event happened."""
        return self.definition.event_time


def suite_of(definition: Definition) -> Suite:
    """The suite of a definition's table; the rules of an ingest belong to that of its bronze table."""
    expectations = definition.expectations
    rows = [RowCheck(each, each.severity) for each in expectations if not isinstance(each, TableExpectation)]
    tables = tuple(each for each in expectations if isinstance(each, TableExpectation))
    if isinstance(definition, Ingest):
        rows = [*(RowCheck(rule, severity_of(rule)) for rule in definition.all_rules), *rows]
    return Suite(definition, tuple(rows), tables)


def severity_of(rule: RowRule) -> str:
    """Of a rule of an ingest: what it lets through is shown; what it keeps out must not be there."""
    return "warn" if rule.on_failure == "warn" else "fail"


def sql_type(delta_type: Any) -> str:
    """A type of Delta's by its name in Spark SQL; of a nested one only the kind."""
    name = str(getattr(delta_type, "type", delta_type))
    return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(name, name.upper())


def broken_column(index: int) -> str:
    """The column that says how many rows break a rule."""
    return f"rule_{index}"


def named(rows: Sequence[RowCheck]) -> str:
    """The names of rules, for a message."""
    return ", ".join(each.name for each in rows)
