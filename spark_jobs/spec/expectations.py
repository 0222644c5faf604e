"""Expectations: what the rows of a table must satisfy, and the table as a whole.

Those on rows are the row rules (`spark_jobs/spec/rules.py`); those on tables are here.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

import sqlglot
from pydantic import Field, field_validator, model_validator
from sqlglot import exp
from sqlglot.errors import SqlglotError

from spark_jobs.spec.base import Spec
from spark_jobs.spec.durations import PositiveDuration, format_duration
from spark_jobs.spec.rules import Between, Matches, NotNull, OneOf, Satisfies, Severity, check_rules
from spark_jobs.spec.sources import TableName

WINDOW_END = "window_end"


class TableExpectation(Spec):
    """What a table must satisfy as a whole.

    Attributes:
        severity: `fail`: the check fails; `warn`: it is shown.
    """

    severity: Severity = "fail"

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)

    @property
    def name(self) -> str:
        """What results and reports call it."""
        raise NotImplementedError

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the table that it names."""
        return ()


class Unique(TableExpectation):
    """No two rows have the same values in these columns; null is a value like any other."""

    kind: Literal["unique"] = "unique"
    columns: tuple[str, ...] = Field(min_length=1)

    def __init__(self, *columns: str, **options: Any) -> None:
        super().__init__(columns=options.pop("columns", columns), **options)

    @property
    def name(self) -> str:
        """`unique(a, b)`."""
        return f"unique({', '.join(self.columns)})"

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self.columns


class Referential(TableExpectation):
    """What stands in these columns is in another table; rows with a null there refer to nothing.

    Attributes:
        columns: of the table that is checked.
        table: the other one.
        other_columns: of the other table, in the same order; none: of the same names.
    """

    kind: Literal["referential"] = "referential"
    columns: tuple[str, ...] = Field(min_length=1)
    table: TableName
    other_columns: tuple[str, ...] = ()

    def __init__(
        self, columns: str | tuple[str, ...], table: str, other_columns: str | tuple[str, ...] = (), **options: Any
    ) -> None:
        mine, others = ((each,) if isinstance(each, str) else each for each in (columns, other_columns))
        super().__init__(columns=mine, table=table, other_columns=others, **options)

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if self.other_columns and len(self.other_columns) != len(self.columns):
            raise ValueError(
                f"other_columns: expected as many as columns ({list(self.columns)}), got {list(self.other_columns)}"
            )
        return self

    @property
    def name(self) -> str:
        """`referential(a in silver.customers)`."""
        return f"referential({', '.join(self.columns)} in {self.table})"

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that refer to the other table."""
        return self.columns


class OverTime(TableExpectation):
    """What is looked at by the time of rows.

    Attributes:
        column: which time; None: the end of the window, or else the event time.
    """

    column: str | None = None

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)

    @property
    def read(self) -> tuple[str, ...]:
        """The time, if it is named."""
        return (self.column,) if self.column is not None else ()


class Fresh(OverTime):
    """The newest event, or the newest window's end, is younger than this when the check runs."""

    kind: Literal["fresh"] = "fresh"
    younger_than: PositiveDuration

    def __init__(self, younger_than: str | timedelta, **options: Any) -> None:
        super().__init__(younger_than=younger_than, **options)

    @property
    def name(self) -> str:
        """`fresh(1 hour)`."""
        of = f"{self.column}, " if self.column else ""
        return f"fresh({of}{format_duration(self.younger_than)})"


class Volume(OverTime):
    """The newest whole interval has about as many rows as those before it.

    Attributes:
        per: length of an interval; they are counted from 1970.
        min_share: at least this share of the median.
        max_share: at most this share of the median.
        intervals: the median is that of so many intervals before; those without rows count as zero.
        every: how far apart they are, such as "7 days": the same hour of the weeks before; None: those directly before.
    """

    kind: Literal["volume"] = "volume"
    per: PositiveDuration
    min_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_share: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    intervals: int = Field(default=24, ge=3, le=10_000)
    every: PositiveDuration | None = None

    def __init__(self, per: str | timedelta, **options: Any) -> None:
        super().__init__(per=per, **options)

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.min_share is None and self.max_share is None:
            raise ValueError("min_share: expected a share in min_share, max_share or both, got neither")
        if self.min_share is not None and self.max_share is not None and self.min_share > self.max_share:
            raise ValueError(f"min_share: expected at most max_share ({self.max_share}), got {self.min_share}")
        if self.every is not None and self.every % self.per:
            raise ValueError(
                f"every: expected a multiple of per ({format_duration(self.per)}), got {format_duration(self.every)}"
            )
        return self

    @property
    def name(self) -> str:
        """`volume(1 hour, 0.5..2)`, `volume(1 hour every 1 week, 0.5..2)`."""
        low, high = ("" if bound is None else f"{bound:g}" for bound in (self.min_share, self.max_share))
        every = f" every {format_duration(self.every)}" if self.every is not None else ""
        return f"volume({format_duration(self.per)}{every}, {low}..{high})"


class Conservation(TableExpectation):
    """The ledger of the pipeline balances, and its tables hold what it says."""

    kind: Literal["conservation"] = "conservation"

    @property
    def name(self) -> str:
        """`conservation`."""
        return "conservation"


class CustomSql(TableExpectation):
    """A query of one's own over the tables of the lake, as for `tidemark sql`, that gives the rows that are wrong."""

    kind: Literal["custom_sql"] = "custom_sql"
    rule_name: str = Field(min_length=1)
    sql: str

    def __init__(self, rule_name: str, sql: str, **options: Any) -> None:
        super().__init__(rule_name=rule_name, sql=sql, **options)

    @field_validator("sql")
    @classmethod
    def _is_a_query(cls, sql: str) -> str:
        try:
            statements = sqlglot.parse(sql, dialect="duckdb")
        except SqlglotError as error:
            raise ValueError(f"expected a query in DuckDB's SQL, got {sql!r} ({str(error).splitlines()[0]})") from None
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise ValueError(f"expected one SELECT that gives the rows that are wrong, got {sql!r}")
        return sql

    @property
    def name(self) -> str:
        """The name that the definition gives."""
        return self.rule_name


Expectation = Annotated[
    NotNull | Between | OneOf | Matches | Satisfies | Unique | Referential | Fresh | Volume | Conservation | CustomSql,
    Field(discriminator="kind"),
]


def check_expectations(
    expectations: Sequence[Expectation],
    taken: Sequence[str],
    known: Sequence[str] | None,
    types: Mapping[str, str],
    event_time: str | None,
) -> None:
    """Refuses what is known to be wrong when a pipeline is defined.

    Args:
        expectations: of the definition.
        taken: names of its rules, which belong to the same suite.
        known: the columns of the table; None: nobody knows yet.
        types: column -> Spark SQL type, as far as known.
        event_time: of the definition.

    Raises:
        ValueError: that says what, and the way out.
    """
    names = [*taken, *(each.name for each in expectations)]
    for each in expectations:
        if names.count(each.name) > 1:
            raise ValueError(f"expectations: expected each name once, got {each.name!r} twice: results go by name")
        if isinstance(each, TableExpectation):
            _check_table(each, known, types, event_time)
        elif each.on_failure != "quarantine":
            raise ValueError(
                f"expectations: {each.name} looks at rows that are written: on_failure is for the rules of an ingest; "
                f"use severity='warn' or 'fail'"
            )
        else:
            check_rules("expectations", (each,), known, types)


def _check_table(
    each: TableExpectation, known: Sequence[str] | None, types: Mapping[str, str], event_time: str | None
) -> None:
    unknown = sorted(set(each.read) - set(known)) if known is not None else []
    if unknown:
        raise ValueError(f"expectations: {each.name} reads {unknown}; expected columns of {sorted(known or ())}")
    if not isinstance(each, OverTime):
        return
    if each.column is not None and types.get(each.column, "TIMESTAMP").strip().upper() != "TIMESTAMP":
        raise ValueError(
            f"expectations: {each.name} goes by a time, but {each.column!r} is {types[each.column]}: name a TIMESTAMP"
        )
    if each.column is None and known is not None and WINDOW_END not in known and event_time not in known:
        raise ValueError(
            f"expectations: {each.name}: its rows have neither a window nor the event time: say column=, one of "
            f"{sorted(known)}"
        )
