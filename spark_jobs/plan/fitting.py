"""Whether a pipeline fits the tables that it reads, as far as their columns' names and types tell.

What is refused here Spark's analysis would refuse too, after it has started; what is not, it may still refuse.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sqlglot import exp

from spark_jobs.plan.columns import OTHER, SIDE, SOURCE_TABLE
from spark_jobs.spec import METADATA_COLUMNS, Aggregate, Enrich, Join, Pipeline, Select, Table, Where
from spark_jobs.spec.expressions import columns, parse
from spark_jobs.spec.steps import StepSpec

Types = Mapping[str, str]
"""Column -> its type, such as `DECIMAL(10, 2)` or `array<int>`."""

_ALWAYS = (*METADATA_COLUMNS, SOURCE_TABLE, SIDE)
_KINDS = {
    "text": ("string", "varchar", "char", "text"),
    "boolean": ("boolean",),
    "number": (
        "tinyint",
        "byte",
        "smallint",
        "short",
        "int",
        "integer",
        "bigint",
        "long",
        "float",
        "double",
        "decimal",
    ),
    "time": ("date", "timestamp", "timestamp_ntz", "timestamp_ltz", "timestampntz", "timestamptz"),
    "bytes": ("binary",),
    "array": ("array",),
    "struct": ("struct",),
    "map": ("map",),
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
# Spark makes what a text says of it to compare the two.
_OF_A_TEXT = {"boolean", "number", "time", "bytes"}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
# Words that some functions take for a unit of time, where others would stand for a column.
_UNITS = frozenset(
    unit + plural
    for unit in ("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond")
    for plural in ("", "s")
) | {"microsecond", "microseconds"}


@dataclass(frozen=True)
class _Given:
    """Columns that are there before a step.

    Attributes:
        place: whose they are, in words.
        types: folded name -> its type; None: not known.
        names: as they are written.
    """

    place: str
    types: Mapping[str, str | None]
    names: tuple[str, ...]

    @staticmethod
    def of(place: str, types: Mapping[str, str | None]) -> "_Given":
        return _Given(place, {name.casefold(): each for name, each in types.items()}, tuple(types))

    def beside(self, types: Mapping[str, str | None]) -> "_Given":
        added = {name.casefold(): each for name, each in types.items()}
        return _Given(self.place, {**self.types, **added}, (*self.names, *types))

    def lacking(self, what: str, read: Iterable[str]) -> Iterator[str]:
        """What is to be said of the columns that it has not."""
        known = {*self.types, *map(str.casefold, _ALWAYS)}
        for name in sorted(read):
            if name.casefold() in known or name.casefold() in _UNITS or name.startswith(OTHER):
                continue
            close = get_close_matches(name, self.names, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            yield f"{what} reads `{name}`, which {self.place} does not have.{hint} It has {', '.join(self.names)}"


def misfits(pipeline: Pipeline, known: Mapping[str, Types]) -> Iterator[str]:
    """What of a pipeline does not fit the tables that it reads, in words; the first says most.

    Args:
        pipeline: that reads them.
        known: table -> its columns; of others nothing is known.
    """
    given = None
    for table in pipeline.source_tables:
        found, wrong = _read(table, known)
        yield from wrong
        given = found if given is None else given
        if found is None:
            return
    if given is None:
        return
    if pipeline.event_time is not None:
        yield from given.lacking("event_time", [pipeline.event_time])
    for step in pipeline.steps:
        for what, read in step.reads():
            yield from given.lacking(what, read)
        for what, sql in _expressions(step):
            yield from _not_comparable(what, sql, given.types)
        after = _after(step, given, known)
        yield from after[1]
        if after[0] is None or isinstance(step, Aggregate):
            return  # a definition knows the columns after an Aggregate by itself
        given = after[0]


def _read(table: Table, known: Mapping[str, Types]) -> tuple[_Given | None, list[str]]:
    """The columns that a table gives, and what is wrong with how it is read."""
    if table.name not in known:
        return None, []
    of_table = _Given.of(table.name, known[table.name])
    if table.select is None:
        return of_table, []
    wrong, types = [], dict[str, str | None]()
    for name, sql in table.select.items():
        what = f"select {name!r} of {table.name}"
        wrong += [*of_table.lacking(what, columns(sql)), *_not_comparable(what, sql, of_table.types)]
        tree = parse(sql)
        types[name] = of_table.types.get(tree.name.casefold()) if _is_column(tree) else None
    return _Given.of(f"what is selected of {table.name}", types), wrong


def _after(step: StepSpec, given: _Given, known: Mapping[str, Types]) -> tuple[_Given | None, list[str]]:
    """The columns after a step, and what is wrong with tables that it reads beside."""
    if isinstance(step, Join):
        other, wrong = _read(step.other, known)
        if other is None:
            return None, wrong
        wrong += [*other.lacking("Join on", step.on), *other.lacking("Join event_time", [step.event_time])]
        return given.beside({name: other.types[name.casefold()] for name in other.names}), wrong
    if isinstance(step, Enrich):
        if step.table not in known:
            return given.beside(dict.fromkeys(step.columns)), []
        table = _Given.of(step.table, known[step.table])
        wrong = [*table.lacking("Enrich on", step.on), *table.lacking("Enrich", step.columns.values())]
        return given.beside({name: table.types.get(each.casefold()) for name, each in step.columns.items()}), wrong
    return given.beside(dict.fromkeys(step.adds())), []


def _expressions(step: StepSpec) -> Iterator[tuple[str, str]]:
    if isinstance(step, Where):
        yield "Where", step.condition
    elif isinstance(step, Select):
        yield from ((f"Select {name!r}", sql) for name, sql in step.columns.items())
    elif isinstance(step, Aggregate):
        yield from ((f"Aggregate measure {name!r}", sql) for name, sql in step.measures.items())


def _not_comparable(what: str, sql: str, types: Mapping[str, str | None]) -> Iterator[str]:
    """Comparisons of values whose types cannot be compared."""
    for node in parse(sql).walk():
        for left, right in _compared(node):
            kinds = _kind(left, types), _kind(right, types)
            if None not in kinds and not _comparable(*map(str, kinds)):
                of = " with ".join(
                    f"{each.sql(dialect='spark')} ({kind})" for each, kind in zip((left, right), kinds, strict=True)
                )
                yield f"{what} compares {of} in `{node.sql(dialect='spark')}`. Cast one of them"


def _compared(node: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    if isinstance(node, _COMPARISONS):
        yield node.this, node.expression
    elif isinstance(node, exp.Between):
        yield from ((node.this, node.args[bound]) for bound in ("low", "high"))
    elif isinstance(node, exp.In):
        yield from ((node.this, each) for each in node.expressions)


def _comparable(left: str, right: str) -> bool:
    if left == right:
        return left != "map"
    return (left == "text" and right in _OF_A_TEXT) or (right == "text" and left in _OF_A_TEXT)


def _kind(tree: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    """What a value is; None: that is not known."""
    tree = tree.unnest()
    if _is_column(tree):
        written = types.get(tree.name.casefold())
    elif isinstance(tree, exp.Literal):
        return "text" if tree.is_string else "number"
    elif isinstance(tree, exp.Boolean):
        return "boolean"
    elif type(tree) in (exp.Cast, exp.TryCast):
        written = tree.args["to"].sql(dialect="spark")
    else:
        return None
    return None if written is None else kind_of(written)


def kind_of(written: str) -> str | None:
    """What values of a type are: those of one kind can be compared; None: it is not known here."""
    word = written.casefold().replace("<", "(").partition("(")[0].strip()
    return _KIND_OF.get(word)


def _is_column(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Column) and len(tree.parts) == 1
