"""Row rules: what an event must satisfy to reach bronze, or a row of a table.

A rule holds where its condition is true or null, as in SQL's CHECK; `NotNull` is the rule for nulls.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_jobs.spec.base import Spec
from spark_jobs.spec.expressions import Condition, columns, is_numeric, is_text, raising_function
from spark_jobs.spec.names import in_spark, text_in_spark
from spark_jobs.spec.patterns import check_pattern

OnFailure = Literal["quarantine", "warn", "fail"]
"""What becomes of a row that breaks a rule: set aside, let through and counted, or the pipeline halts."""

Severity = Literal["warn", "fail"]
"""What a broken expectation of a table does: it is shown, or the check fails."""

RESERVED_REASONS = frozenset(
    {"unparseable", "header", "future", "before year 1", "unreadable file", "missing column", "wrong type", "skipped"}
)
"""Reasons of the quarantine that are no rule's."""


def _check_bound(bound: object) -> object:
    number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if bound is not None and not (number and abs(bound) < 1e38):  # type: ignore[arg-type]
        raise ValueError(f"expected a finite number, got {bound!r}")
    return bound


Bound = Annotated[float | int | None, BeforeValidator(_check_bound)]


class _Rule(Spec):
    """A condition on one row.

    Attributes:
        on_failure: among the `rules` of an ingest: what becomes of the event.
        severity: among `expectations`: what the check of the table does.
    """

    on_failure: OnFailure = "quarantine"
    severity: Severity = "fail"

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)

    @property
    def name(self) -> str:
        """What the quarantine and the ledger call the rule."""
        raise NotImplementedError

    @property
    def condition(self) -> str:
        """The rule as a Spark SQL condition, true or null where it holds."""
        raise NotImplementedError

    def refuses_type(self, sql_type: str) -> str | None:
        """Why values of a column of this type cannot be compared; None: they can."""
        return None


class NotNull(_Rule):
    """The column has a value."""

    kind: Literal["not_null"] = "not_null"
    column: str

    def __init__(self, column: str, **options: Any) -> None:
        super().__init__(column=column, **options)

    @property
    def name(self) -> str:
        """`not_null(column)`."""
        return f"not_null({self.column})"

    @property
    def condition(self) -> str:
        """`column IS NOT NULL`."""
        return f"{in_spark(self.column)} IS NOT NULL"


class Between(_Rule):
    """The column lies between two bounds, both inclusive; one may be left open."""

    kind: Literal["between"] = "between"
    column: str
    min: Bound = None
    max: Bound = None

    def __init__(self, column: str, **options: Any) -> None:
        super().__init__(column=column, **options)

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("min: expected a bound in min, max or both, got neither")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: expected at most max ({self.max}), got {self.min}: no row could satisfy it")
        return self

    @property
    def name(self) -> str:
        """`between(column, min..max)`, with nothing for an open end."""
        low, high = ("" if bound is None else f"{bound}" for bound in (self.min, self.max))
        return f"between({self.column}, {low}..{high})"

    @property
    def condition(self) -> str:
        """The bounds as comparisons."""
        bounds = []
        if self.min is not None:
            bounds.append(f"{in_spark(self.column)} >= {self.min}")
        if self.max is not None:
            bounds.append(f"{in_spark(self.column)} <= {self.max}")
        return " AND ".join(bounds)

    def refuses_type(self, sql_type: str) -> str | None:
        """Spark would compare as numbers, or as the column's type, and stop at the first text that is none."""
        return None if is_numeric(sql_type) else "compares numbers"


class OneOf(_Rule):
    """The column has one of the listed texts."""

    kind: Literal["one_of"] = "one_of"
    column: str
    values: tuple[str, ...] = Field(min_length=1)

    def __init__(self, column: str, values: tuple[str, ...], **options: Any) -> None:
        super().__init__(column=column, values=values, **options)

    @property
    def name(self) -> str:
        """`one_of(column)`."""
        return f"one_of({self.column})"

    @property
    def condition(self) -> str:
        """`column IN (…)`."""
        return f"{in_spark(self.column)} IN ({', '.join(text_in_spark(value) for value in self.values)})"

    def refuses_type(self, sql_type: str) -> str | None:
        """Why a column's type does not fit: the rule compares texts."""
        return None if is_text(sql_type) else "compares texts"


class Matches(_Rule):
    """The whole text in the column matches a regular expression, of those that all engines read alike."""

    kind: Literal["matches"] = "matches"
    column: str
    regex: str

    def __init__(self, column: str, regex: str, **options: Any) -> None:
        super().__init__(column=column, regex=regex, **options)

    @field_validator("regex")
    @classmethod
    def _is_read_alike(cls, regex: str) -> str:
        return check_pattern(regex)

    @property
    def name(self) -> str:
        """`matches(column, regex)`."""
        return f"matches({self.column}, {self.regex})"

    @property
    def condition(self) -> str:
        """`column RLIKE …`, from the beginning of the text to its end; a dot is any character."""
        return f"{in_spark(self.column)} RLIKE {text_in_spark(f'{chr(92)}A(?s:{self.regex}){chr(92)}z')}"

    def refuses_type(self, sql_type: str) -> str | None:
        """Why a column's type does not fit: the rule compares texts."""
        return None if is_text(sql_type) else "compares texts"


class Satisfies(_Rule):
    """A condition of one's own over the columns of the row.

    What cannot be computed for a row, as `CAST('n/a' AS INT)`, is null, and so is usually the condition: it holds.
    `coalesce(CAST(quantity AS INT) > 0, false)` sets such rows aside.
    """

    kind: Literal["satisfies"] = "satisfies"
    rule_name: str
    sql: Condition

    @field_validator("rule_name")
    @classmethod
    def _tells_what_was_wrong(cls, rule_name: str) -> str:
        if not rule_name.strip() or rule_name in RESERVED_REASONS or rule_name.startswith("warn: "):
            raise ValueError(
                f"expected a name that tells in the quarantine which rule was broken, got {rule_name!r} (not one of "
                f"{sorted(RESERVED_REASONS)}, which are Tidemark's own)"
            )
        return rule_name

    @field_validator("sql")
    @classmethod
    def _never_raises(cls, sql: str) -> str:
        if found := raising_function(sql):
            name, way_out = found
            raise ValueError(f"{name}() stops the stream at a row that it does not accept, got {sql!r}: {way_out}")
        return sql

    def __init__(self, rule_name: str, sql: str, **options: Any) -> None:
        super().__init__(rule_name=rule_name, sql=sql, **options)

    @property
    def name(self) -> str:
        """The name that the definition gives."""
        return self.rule_name

    @property
    def condition(self) -> str:
        """The condition as written."""
        return self.sql


RowRule = Annotated[NotNull | Between | OneOf | Matches | Satisfies, Field(discriminator="kind")]


def check_rules(field: str, rules: Sequence[RowRule], known: Sequence[str] | None, types: Mapping[str, str]) -> None:
    """Refuses rules that read columns which are not there, or compare what cannot be compared.

    Args:
        field: of the definition, which has the rules.
        rules: to look at.
        known: the columns that rows have; None: nobody knows yet.
        types: column -> Spark SQL type, as far as known.

    Raises:
        ValueError: that says what, and the way out.
    """
    for rule in rules:
        read = columns(rule.condition)
        unknown = read - set(known) if known is not None else ()
        if unknown:
            raise ValueError(f"{field}: {rule.name} reads {sorted(unknown)}; expected columns of {sorted(known or ())}")
        for column in sorted(read & set(types)):
            if why := rule.refuses_type(types[column]):
                raise ValueError(
                    f"{field}: {rule.name} {why}, but {column!r} is {types[column]}: use Satisfies(name, condition)"
                )
