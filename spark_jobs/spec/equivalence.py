"""Conditions that DuckDB is proven to judge as Spark does: the only ones that it may judge for Spark.

That DuckDB computes an expression without an error is no proof that it means the same: `dayofweek`, `round`, casts to
STRING and many more give other values. So this is a list of what may stand in a condition, by types, and everything
else is left to Spark. `tests/spark/test_equivalence.py` holds random conditions of the list against both engines.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from spark_jobs.spec.expressions import syntax
from spark_jobs.spec.patterns import check_pattern

_WHOLE_TEXT = re.compile(r"\\A\(\?s:(?P<inner>.*)\)\\z", re.DOTALL)
"""What the rule `Matches` makes of a pattern."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
_MOST_DIGITS = 38
_EXACT_DIGITS = 15
"""A decimal of so many digits is the nearest double in both engines."""
_EXACT_IN_A_FLOAT = 2**24
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}


class _UnprovenError(Exception):
    """A part of a condition that is not on the list."""


@dataclass(frozen=True)
class _Value:
    """What a part of a condition gives.

    Attributes:
        kind: of its values.
        digits: of an integer or a decimal, at most.
        scale: of a decimal.
        single: it is a column of type FLOAT.
        constant: it is a number as it stands in the text.
    """

    kind: Literal["bool", "integer", "decimal", "double", "text", "timestamp", "date", "null"]
    digits: int = 0
    scale: int = 0
    single: bool = False
    constant: int | None = None


def why_unproven(sql: str, types: Mapping[str, str]) -> str | None:
    """Why DuckDB might judge a condition in another way than Spark; None: it is proven to judge alike.

    Args:
        sql: a condition that was taken, in Spark SQL.
        types: column -> Spark SQL type, of the table whose rows are judged; names as they are, whatever their case.
    """
    try:
        found = _Judge({name.casefold(): kind for name, kind in types.items()}).value(syntax(sql))
    except _UnprovenError as error:
        return str(error)
    return None if found.kind in ("bool", "null") else "it is no condition"


def comparable(left: str, right: str) -> bool:
    """Whether both engines compare values of two Spark SQL types by the same common type."""
    values = _of_type(left.strip().upper()), _of_type(right.strip().upper())
    return None not in values and _comparable(*values)  # type: ignore[arg-type]


class _Judge:
    """Goes through a condition.

    Args:
        types: column, case folded -> Spark SQL type.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types

    def value(self, node: exp.Expr) -> _Value:
        """What a part gives.

        Raises:
            _UnprovenError: if it, or anything inside it, is not on the list.
        """
        for kind, way in _WAYS:
            if type(node) is kind:
                return way(self, node)
        raise _UnprovenError(f"{type(node).__name__} is not proven to mean the same: {node.sql(dialect='spark')}")

    def column(self, node: exp.Expr) -> _Value:
        if not isinstance(node, exp.Column) or len(node.parts) != 1:
            raise _UnprovenError(f"{node.sql(dialect='spark')} is a field of a struct")
        name = node.parts[0].name
        sql_type = self._types.get(name.casefold(), "unknown").strip().upper()
        found = _of_type(sql_type)
        if found is None:
            raise _UnprovenError(f"{name!r} is {sql_type}")
        return found

    def literal(self, node: exp.Expr) -> _Value:
        text = node.name
        if node.args.get("is_string"):
            return _Value("text")
        if re.fullmatch(r"\d+", text):
            if len(text) > 18:
                raise _UnprovenError(f"{text} is no BIGINT")
            return _Value("integer", digits=len(text), constant=int(text))
        if re.fullmatch(r"\d*\.\d+|\d+\.", text):
            whole, _, fraction = text.partition(".")
            return _Value("decimal", digits=len(whole) + len(fraction), scale=len(fraction))
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text):
            return _Value("double")
        raise _UnprovenError(f"{text} is a literal of Spark's own")

    def negative(self, node: exp.Expr) -> _Value:
        found = self.value(node.this)
        if not isinstance(node.this, exp.Literal) or found.kind not in ("integer", "decimal", "double"):
            raise _UnprovenError(f"{node.sql(dialect='spark')}: only numbers are negated")
        constant = -found.constant if found.constant is not None else None
        return _Value(found.kind, found.digits, found.scale, constant=constant)

    def boolean(self, node: exp.Expr) -> _Value:
        return _Value("bool")

    def null(self, node: exp.Expr) -> _Value:
        return _Value("null")

    def inner(self, node: exp.Expr) -> _Value:
        return self.value(node.this)

    def connected(self, node: exp.Expr) -> _Value:
        for part in node.iter_expressions():
            self._of_kind(part, "bool")
        return _Value("bool")

    def is_null(self, node: exp.Expr) -> _Value:
        if not isinstance(node.args["expression"], exp.Null):
            raise _UnprovenError(f"{node.sql(dialect='spark')}: only IS NULL is on the list")
        # Whatever its type: both know whether a column has a value.
        if not (isinstance(node.this, exp.Column) and len(node.this.parts) == 1):
            self.value(node.this)
        return _Value("bool")

    def compared(self, node: exp.Expr) -> _Value:
        parts = [part for name, part in node.args.items() if name != "symmetric" and isinstance(part, exp.Expr)]
        if node.args.get("symmetric"):
            raise _UnprovenError("BETWEEN SYMMETRIC is not on the list")
        self._alike(self.value(parts[0]), [self.value(part) for part in parts[1:]], node)
        return _Value("bool")

    def among(self, node: exp.Expr) -> _Value:
        given = {name for name, value in node.args.items() if value}
        if given != {"this", "expressions"}:
            raise _UnprovenError(f"{node.sql(dialect='spark')}: only IN with values is on the list")
        self._alike(self.value(node.this), [self.value(part) for part in node.expressions], node)
        return _Value("bool")

    def first_of(self, node: exp.Expr) -> _Value:
        return self._same([node.this, *node.expressions], node)

    def chosen(self, node: exp.Expr) -> _Value:
        if node.args.get("this") is not None:
            raise _UnprovenError("CASE with a value is not on the list")
        cases = node.args["ifs"]
        for case in cases:
            self._of_kind(case.this, "bool")
        given = [case.args["true"] for case in cases]
        return self._same([*given, *([node.args["default"]] if node.args.get("default") else [])], node)

    def chosen_of_two(self, node: exp.Expr) -> _Value:
        self._of_kind(node.this, "bool")
        given = [node.args["true"], *([node.args["false"]] if node.args.get("false") else [])]
        return self._same(given, node)

    def sum_or_product(self, node: exp.Expr) -> _Value:
        left, right = self._numbers(node.this, node.expression)
        kinds = {left.kind, right.kind}
        if kinds == {"integer"}:
            # Spark goes round where a sum is too large; DuckDB rearranges the comparison, or fails.
            raise _UnprovenError(f"{node.sql(dialect='spark')}: whole numbers may become too large")
        if kinds == {"double"} and not (left.single or right.single):
            return _Value("double")
        if "double" in kinds:
            raise _UnprovenError(f"{node.sql(dialect='spark')} mixes doubles with other numbers")
        if isinstance(node, exp.Mul):
            digits, scale = left.digits + right.digits + 1, left.scale + right.scale
        else:
            scale = max(left.scale, right.scale)
            digits = max(left.digits - left.scale, right.digits - right.scale) + scale + 1
        if digits > _MOST_DIGITS:
            raise _UnprovenError(f"{node.sql(dialect='spark')} may need more digits than a decimal has")
        return _Value("decimal", digits=digits, scale=scale)

    def rest(self, node: exp.Expr) -> _Value:
        left, right = self._numbers(node.this, node.expression)
        if {left.kind, right.kind} != {"integer"} or (right.constant or 0) < 1:
            raise _UnprovenError(f"{node.sql(dialect='spark')}: only the rest by a whole number is on the list")
        return _Value("integer", digits=20)

    def length(self, node: exp.Expr) -> _Value:
        self._of_kind(node.this, "text")
        return _Value("integer", digits=10)

    def like(self, node: exp.Expr) -> _Value:
        self._of_kind(node.this, "text")
        pattern = node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.args.get("is_string") or "\\" in pattern.name:
            raise _UnprovenError(f"{node.sql(dialect='spark')}: only LIKE with a text without backslashes is proven")
        return _Value("bool")

    def matched(self, node: exp.Expr) -> _Value:
        self._of_kind(node.this, "text")
        pattern = node.expression
        whole = _WHOLE_TEXT.fullmatch(pattern.name) if isinstance(pattern, exp.Literal) else None
        if whole is None:
            raise _UnprovenError(
                f"{node.sql(dialect='spark')}: use Matches(column, regex), which all engines read alike"
            )
        try:
            check_pattern(whole["inner"])
        except ValueError as error:
            raise _UnprovenError(str(error)) from error
        return _Value("bool")

    def instant(self, node: exp.Expr) -> _Value:
        of_time = node.is_type(exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMP)
        literal = isinstance(node.this, exp.Literal) and node.this.args.get("is_string")
        if not literal or not _INSTANT.fullmatch(node.this.name) or not (of_time or node.is_type(exp.DType.DATE)):
            raise _UnprovenError(
                f"{node.sql(dialect='spark')}: casts are not on the list, only times as they are written"
            )
        return _Value("timestamp" if of_time else "date")

    def _of_kind(self, node: exp.Expr, kind: str) -> None:
        found = self.value(node).kind
        if found not in (kind, "null"):
            raise _UnprovenError(f"{node.sql(dialect='spark')} is {found}, not {kind}")

    def _numbers(self, *nodes: exp.Expr) -> list[_Value]:
        found = [self.value(node) for node in nodes]
        for each, node in zip(found, nodes, strict=True):
            if each.kind not in ("integer", "decimal", "double"):
                raise _UnprovenError(f"{node.sql(dialect='spark')} is {each.kind}, no number")
        return found

    def _same(self, nodes: Iterable[exp.Expr], above: exp.Expr) -> _Value:
        """What branches give that are of one type."""
        found = {each for each in map(self.value, nodes) if each.kind != "null"}
        kinds = {each.kind for each in found}
        if len(kinds) > 1 or (kinds & {"decimal", "double"} and len(found) > 1):
            raise _UnprovenError(f"{above.sql(dialect='spark')} gives values of several types")
        if kinds == {"integer"}:
            return _Value("integer", digits=20)
        return next(iter(found), _Value("null"))

    def _alike(self, left: _Value, others: Iterable[_Value], node: exp.Expr) -> None:
        for right in others:
            if not _comparable(left, right):
                said = f"{left.kind} with {right.kind}"
                raise _UnprovenError(f"{node.sql(dialect='spark')} compares {said}")


def _of_type(sql_type: str) -> _Value | None:
    if sql_type in _DIGITS:
        return _Value("integer", digits=_DIGITS[sql_type])
    if found := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", sql_type):
        return _Value("decimal", digits=int(found[1]), scale=int(found[2]))
    kinds: dict[str, _Value] = {
        "BOOLEAN": _Value("bool"),
        "STRING": _Value("text"),
        "DOUBLE": _Value("double"),
        "FLOAT": _Value("double", single=True),
        "TIMESTAMP": _Value("timestamp"),
        "DATE": _Value("date"),
    }
    return kinds.get(sql_type)


def _comparable(left: _Value, right: _Value) -> bool:
    """Whether both engines compare two values by the same common type."""
    if "null" in (left.kind, right.kind):
        return True
    kinds = {left.kind, right.kind}
    if kinds == {"double"}:
        return True
    if "double" in kinds:
        double, other = (left, right) if left.kind == "double" else (right, left)
        if other.kind == "integer":
            # Spark makes floats of whole numbers that stand beside a FLOAT.
            few = other.constant is not None and abs(other.constant) <= _EXACT_IN_A_FLOAT
            return few if double.single else True
        return other.kind == "decimal" and other.digits <= _EXACT_DIGITS
    if kinds <= {"integer", "decimal"}:
        scale = max(left.scale, right.scale)
        return max(left.digits - left.scale, right.digits - right.scale) + scale <= _MOST_DIGITS
    return len(kinds) == 1


_WAYS: tuple[tuple[type[exp.Expr], Callable[[_Judge, exp.Expr], _Value]], ...] = (
    (exp.Column, _Judge.column),
    (exp.Literal, _Judge.literal),
    (exp.Neg, _Judge.negative),
    (exp.Boolean, _Judge.boolean),
    (exp.Null, _Judge.null),
    (exp.Paren, _Judge.inner),
    (exp.Not, _Judge.connected),
    (exp.And, _Judge.connected),
    (exp.Or, _Judge.connected),
    (exp.Is, _Judge.is_null),
    *((kind, _Judge.compared) for kind in (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)),
    (exp.Between, _Judge.compared),
    (exp.In, _Judge.among),
    (exp.Coalesce, _Judge.first_of),
    (exp.Case, _Judge.chosen),
    (exp.If, _Judge.chosen_of_two),
    (exp.Add, _Judge.sum_or_product),
    (exp.Sub, _Judge.sum_or_product),
    (exp.Mul, _Judge.sum_or_product),
    (exp.Mod, _Judge.rest),
    (exp.Length, _Judge.length),
    (exp.Like, _Judge.like),
    (exp.RegexpLike, _Judge.matched),
    (exp.Cast, _Judge.instant),
)
"""Kind of a part -> how it is judged: the list."""
