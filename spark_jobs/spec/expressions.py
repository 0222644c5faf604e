"""SQL expressions: parsed when a pipeline is defined, run by Spark, transpiled for DuckDB."""

from collections.abc import Iterable
from typing import Annotated

import sqlglot
from pydantic import AfterValidator
from sqlglot import exp
from sqlglot.errors import SqlglotError

_CLOCK_AND_CHANCE = (
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentDatetime,
    exp.Rand,
    exp.Randn,
    exp.Uuid,
)
_UNREPEATABLE = {
    "now",
    "unix_timestamp",
    "monotonically_increasing_id",
    "spark_partition_id",
    "input_file_name",
    "shuffle",
    "rand",
    "randn",
    "random",
    "uuid",
    "curdate",
    "localtimestamp",
}
_ORDER_DEPENDENT = (exp.First, exp.Last, exp.AnyValue, exp.FirstValue, exp.LastValue)
# Aggregates that sqlglot has no class for.
_AGGREGATE_NAMES = {
    "approx_percentile",
    "percentile_approx",
    "percentile",
    "any",
    "some",
    "every",
    "bool_and",
    "bool_or",
    "count_min_sketch",
    "histogram_numeric",
    "kurtosis",
    "regr_count",
    "regr_r2",
    "try_avg",
    "try_sum",
}


def parse(sql: str) -> exp.Expr:
    """The syntax tree of one Spark SQL expression.

    Raises:
        ValueError: if the text is no single expression, or can give another answer when it is asked again.
    """
    try:
        select = sqlglot.parse_one(f"SELECT {sql}", dialect="spark")
    except SqlglotError as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a Spark SQL expression, got {sql!r} ({first_line})") from None
    if not isinstance(select, exp.Select) or len(select.expressions) != 1 or select.args.get("from_"):
        raise ValueError(f"expected a single Spark SQL expression, got {sql!r}")
    tree: exp.Expr = select.expressions[0]
    if isinstance(tree, exp.Alias):
        raise ValueError(f"expected an expression without an alias, got {sql!r}: the mapping's key names it")
    if tree.find(exp.Subquery, exp.Select):
        raise ValueError(f"expected an expression without a subquery, got {sql!r}: use Enrich or Join")
    if tree.find(exp.Window):
        raise ValueError(f"Spark cannot run OVER (...) on a stream, got {sql!r}: use Aggregate or TopN")
    for node in tree.find_all(exp.Func):
        if isinstance(node, _CLOCK_AND_CHANCE) or _name(node) in _UNREPEATABLE:
            raise ValueError(
                f"{_name(node)}() answers differently each time, so a replayed batch would not repeat its rows; "
                f"got {sql!r}: use a column of the event, such as _ingest_time"
            )
    return tree


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def is_aggregate(tree: exp.Expr) -> bool:
    """Whether any part of the expression is an aggregate function."""
    return any(_is_aggregate_function(node) for node in tree.walk())


def _is_aggregate_function(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and _name(node) in _AGGREGATE_NAMES)


def columns(sql: str) -> frozenset[str]:
    """The columns that the expression reads (lambda variables are none)."""
    tree = parse(sql)
    bound = {variable.name for function in tree.find_all(exp.Lambda) for variable in function.expressions}
    return frozenset(column.parts[0].name for column in tree.find_all(exp.Column) if column.parts[0].name not in bound)


def to_duckdb(sql: str) -> str:
    """The same expression in DuckDB's dialect."""
    return parse(sql).sql(dialect="duckdb")


def _check_scalar(sql: str) -> str:
    if is_aggregate(parse(sql)):
        raise ValueError(f"expected an expression of one row, got the aggregate {sql!r}: use Aggregate")
    return sql


def _check_aggregate(sql: str) -> str:
    tree = parse(sql)
    if not is_aggregate(tree):
        raise ValueError(f"expected an aggregate such as 'sum(quantity)', got {sql!r}")
    if tree.find(exp.Distinct):
        raise ValueError(
            f"Spark cannot count distinct values incrementally, got {sql!r}: use approx_count_distinct(...)"
        )
    order_dependent = tree.find(*_ORDER_DEPENDENT)
    if order_dependent:
        raise ValueError(
            f"{order_dependent.sql_name().lower()}() depends on the order in which rows are read, got {sql!r}: "
            "use min_by(value, event_time) or max_by(value, event_time)"
        )
    return sql


def split_order_by(sql: str) -> tuple[str, ...]:
    """The terms of an ORDER BY list, in Spark SQL.

    Raises:
        ValueError: if the text is no such list.
    """
    try:
        select = sqlglot.parse_one(f"SELECT 1 ORDER BY {sql}", dialect="spark")
    except SqlglotError:
        raise ValueError(f"expected an ORDER BY list such as 'units DESC, product_id', got {sql!r}") from None
    order = select.args.get("order")
    if order is None:
        raise ValueError(f"expected an ORDER BY list such as 'units DESC, product_id', got {sql!r}")
    return tuple(term.sql(dialect="spark") for term in order.expressions)


def _check_order_by(sql: str) -> str:
    split_order_by(sql)
    return sql


def check_type(sql: str) -> str:
    """A Spark SQL column type, as text.

    Raises:
        ValueError: if it is no type of Spark SQL.
    """
    try:
        exp.DataType.build(sql, dialect="spark")
    except (SqlglotError, ValueError):
        raise ValueError(f"expected a Spark SQL type such as 'DECIMAL(10, 2)', got {sql!r}") from None
    return sql


def check_column_names(names: Iterable[str]) -> None:
    """Refuses names that Tidemark keeps for itself.

    Raises:
        ValueError: if a name starts with an underscore or is empty.
    """
    for name in names:
        if not name or name.startswith("_"):
            raise ValueError(f"column names that start with an underscore are Tidemark's own, got {name!r}")


Scalar = Annotated[str, AfterValidator(_check_scalar)]
"""A Spark SQL expression over the columns of one row."""

AggregateExpression = Annotated[str, AfterValidator(_check_aggregate)]
"""A Spark SQL expression over the rows of a group, one that Spark can compute incrementally."""

OrderBy = Annotated[str, AfterValidator(_check_order_by)]
"""An ORDER BY list."""

SqlType = Annotated[str, AfterValidator(check_type)]
"""A Spark SQL column type."""
