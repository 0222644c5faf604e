"""Values of personal columns, which no sample shows."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope

from spark_jobs.spec.names import in_duckdb
from spark_jobs.spec.personal import MASK

_LONGEST = 200

_NOT_FOLLOWED = (exp.Pivot, exp.Columns, exp.Lateral, exp.UDTF, exp.Summarize, exp.Describe, exp.Command)
"""What makes columns of values, or of columns that it does not name."""

_STAR_OPTIONS = ("replace", "replace_", "rename")


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, and those of them that are personal."""

    names: Collection[str]
    personal: Collection[str]


def masked(rows: Iterable[Mapping[str, Any]], personal: Collection[str]) -> tuple[dict[str, str | None], ...]:
    """Rows as texts for people.

    Args:
        rows: column -> value.
        personal: columns whose values are not shown; in whatever case.
    """
    hidden = {name.casefold() for name in personal}
    return tuple(
        {name: MASK if name.casefold() in hidden else _text(value) for name, value in row.items()} for row in rows
    )


def masked_results(
    rows: Iterable[Sequence[Any]],
    names: Sequence[str],
    hidden: Sequence[bool],
    *,
    sql: str,
    tables: Mapping[str, TableColumns],
) -> tuple[dict[str, str | None], ...]:
    """Rows of a query as texts for people.

    Args:
        rows: of its result.
        names: of its columns. A PIVOT makes names of values: of what is hidden, those are shown that the query or a
            table has.
        hidden: for each column, whether its values are not shown.
        sql: the query.
        tables: those that it names.
    """
    written = {word.casefold() for word in _written(sql)}
    written |= {name.casefold() for each in tables.values() for name in each.names}
    shown = [
        name if not hide or name.casefold() in written else f"column {number}"
        for number, (name, hide) in enumerate(zip(names, hidden, strict=True), start=1)
    ]
    return tuple(
        {name: MASK if hide else _text(value) for name, hide, value in zip(shown, hidden, row, strict=True)}
        for row in rows
    )


def _written(sql: str) -> Iterator[str]:
    """The words of a query, and its names: in quotes one may be more than a word."""
    yield from re.findall(r"\w+", sql)
    with suppress(SqlglotError):
        yield from (each.name for each in sqlglot.parse_one(sql, dialect="duckdb").find_all(exp.Identifier))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def tables_read(sql: str) -> frozenset[str]:
    """The tables that a query names, such as `gold.top_products`; empty where it cannot be read."""
    try:
        found = sqlglot.parse_one(sql, dialect="duckdb").find_all(exp.Table)
    except SqlglotError:
        return frozenset()
    return frozenset(f"{table.db}.{table.name}".casefold() for table in found if table.db and table.name)


def personal_outputs(sql: str, outputs: Sequence[str], tables: Mapping[str, TableColumns]) -> list[bool]:
    """For each column of a query's result, whether it may hold personal values.

    It may not where every column that it is computed from is known, and none of them is personal. Whatever cannot be
    followed to its columns may: a PIVOT, a whole row, a function of tables, ….

    Args:
        sql: in DuckDB's dialect.
        outputs: columns of its result.
        tables: those that the query names.
    """
    try:
        found = _Query(sql, tables).outputs()
    except (SqlglotError, _NotFollowedError, RecursionError, KeyError, ValueError, AttributeError):
        return [True] * len(outputs)
    # Where the names are others, something was not understood.
    if len(found) != len(outputs) or not all(map(_is_called, outputs, [name for name, _ in found])):
        return [True] * len(outputs)
    return [hidden for _, hidden in found]


def _is_called(output: str, name: str) -> bool:
    """Whether a column may have a name; of two columns with one name DuckDB gives the second a number."""
    return not name or re.fullmatch(rf"{re.escape(name)}(_\d+)?", output, re.IGNORECASE) is not None


def reads_personal(sql: str, tables: Mapping[str, TableColumns]) -> bool:
    """Whether a query may read personal values, so that its errors may quote them.

    Args:
        sql: in DuckDB's dialect.
        tables: those that the query names.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect="duckdb")
    except SqlglotError:
        return True
    named = {each.alias.casefold() for each in tree.find_all(exp.CTE)}
    known = {name.casefold(): columns for name, columns in tables.items()}
    for table in tree.find_all(exp.Table):
        if not table.db and table.name.casefold() in named:
            continue
        columns = known.get(f"{table.db}.{table.name}".casefold())
        if columns is None or {name.casefold() for name in columns.names} & {n.casefold() for n in columns.personal}:
            return True
    return False


def makes_names_of_values(sql: str) -> bool:
    """Whether a query may have columns that are called like values."""
    try:
        return sqlglot.parse_one(sql, dialect="duckdb").find(exp.Pivot) is not None
    except SqlglotError:
        return True


class _NotFollowedError(Exception):
    """A query whose columns are not known to come from certain columns."""


def _sides(scope: Scope) -> Sequence[Scope]:
    found: Sequence[Scope] = getattr(scope, "union_scopes", ())
    return found


class _Query:
    """A query over tables that are known."""

    def __init__(self, sql: str, tables: Mapping[str, TableColumns]) -> None:
        self._personal: dict[str, dict[str, bool]] = {}
        schema: dict[str, Any] = {}
        for table, columns in tables.items():
            hidden = {name.casefold() for name in columns.personal}
            names = [name.casefold() for name in columns.names]
            self._personal[table.casefold()] = {name: name in hidden for name in names}
            # The names of a schema are parsed.
            layer, short = map(in_duckdb, table.split(".", 1))
            schema.setdefault(layer, {})[short] = dict.fromkeys(map(in_duckdb, columns.names), "TEXT")
        tree = sqlglot.parse_one(sql, dialect="duckdb")
        self._refuse(tree)
        qualified = qualify(
            tree,
            dialect="duckdb",
            schema=schema,
            # An alias of the same SELECT may be called like a column: what is not a column of a table is not followed.
            expand_alias_refs=False,
            validate_qualify_columns=False,
            quote_identifiers=False,
        )
        scope = build_scope(qualified)
        if scope is None:
            raise _NotFollowedError
        self._scope = scope

    def outputs(self) -> list[tuple[str, bool]]:
        """The columns of the result: a name where one is written there, and whether the values may be personal."""
        return self._of_scope(self._scope)

    def _refuse(self, tree: exp.Expr) -> None:
        renamed = any(alias.columns for alias in tree.find_all(exp.TableAlias))
        recursive = any(each.args.get("recursive") for each in tree.find_all(exp.With))
        by_name = any(each.args.get("by_name") for each in tree.find_all(exp.SetOperation))
        natural = any(each.args.get("method") or each.args.get("using") for each in tree.find_all(exp.Join))
        stars = any(star.args.get(each) for star in tree.find_all(exp.Star) for each in _STAR_OPTIONS)
        if renamed or recursive or by_name or natural or stars or tree.find(*_NOT_FOLLOWED) is not None:
            raise _NotFollowedError
        for table in tree.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier) or table.args.get("pivots"):
                raise _NotFollowedError

    def _of_scope(self, scope: Scope) -> list[tuple[str, bool]]:
        tree = scope.expression
        if isinstance(tree, exp.SetOperation):
            left, right = (self._of_scope(each) for each in _sides(scope))
            if len(left) != len(right):
                raise _NotFollowedError
            return [(name, one or other) for (name, one), (_, other) in zip(left, right, strict=True)]
        if not isinstance(tree, exp.Select):
            raise _NotFollowedError
        known: dict[str, dict[str, bool]] = {}
        return [self._of_expression(each, scope, known) for each in tree.expressions]

    def _of_expression(self, tree: exp.Expr, scope: Scope, known: dict[str, dict[str, bool]]) -> tuple[str, bool]:
        if tree.find(exp.Star) is not None and not isinstance(tree.unalias(), exp.Count):
            raise _NotFollowedError
        name = tree.alias_or_name
        given = name if isinstance(tree, exp.Column) or not name.startswith("_col_") else ""
        value = tree.unalias()
        # A name that is no column may be a whole row, under the name of its table.
        others = any(each.find_ancestor(exp.Column) is None for each in value.find_all(exp.Identifier))
        if others or value.find(exp.Query) is not None:
            return given, True
        return given, any(
            self._of_column(column, scope, known)
            for column in value.find_all(exp.Column)
            if column.find_ancestor(exp.Count) is None
        )

    def _of_column(self, column: exp.Column, scope: Scope, known: dict[str, dict[str, bool]]) -> bool:
        source = scope.sources.get(column.table) if column.table else None
        if source is None:
            return True
        if column.table not in known:
            known[column.table] = self._of_source(source)
        return known[column.table].get(column.name.casefold(), True)

    def _of_source(self, source: exp.Table | Scope) -> dict[str, bool]:
        if isinstance(source, Scope):
            found: dict[str, bool] = {}
            for name, hidden in self._of_scope(source):
                found[name.casefold()] = found.get(name.casefold(), False) or hidden
            return found
        return self._personal.get(f"{source.db}.{source.name}".casefold(), {})
