"""Values of personal columns, which no sample shows."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlglot
from sqlglot import exp

from spark_jobs.spec.personal import MASK

_LONGEST = 200
_STAR_OPTIONS = ("replace", "replace_", "rename")


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


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def personal_outputs(sql: str, outputs: Collection[str], personal: Collection[str]) -> frozenset[str]:
    """The columns of a query's result that may hold values of personal columns.

    Where the query names a personal column anywhere, only columns that it selects by their plain name are known not to.

    Args:
        sql: in DuckDB's dialect.
        outputs: columns of its result.
        personal: columns of the tables.
    """
    hidden = {name.casefold() for name in personal}
    named = frozenset(name for name in outputs if name.casefold() in hidden)
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    tables = {table.alias_or_name.casefold() for table in tree.find_all(exp.Table)}
    read = {column.name.casefold() for column in tree.find_all(exp.Column)}
    stars = [star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]
    # A whole row can be taken under the name of its table, and columns can get other names on the way.
    renamed = any(alias.columns for alias in tree.find_all(exp.TableAlias)) or tree.find(exp.Columns) is not None
    whole = bool(read & tables) or renamed or any(star.args.get(each) for star in stars for each in _STAR_OPTIONS)
    if not hidden or not (read & hidden or whole or stars):
        return named
    if whole or not isinstance(tree, exp.Select) or tree.find(exp.Subquery, exp.CTE) is not None:
        return frozenset(outputs)
    if not read & hidden:
        return named
    plain = {each.name.casefold() for each in tree.selects if isinstance(each, exp.Column)}
    plain -= {each.alias.casefold() for each in tree.selects if isinstance(each, exp.Alias)}
    return named | frozenset(name for name in outputs if not stars and name.casefold() not in plain - hidden)
