"""SQL expressions: parsed when a pipeline is defined, run by Spark, transpiled for DuckDB."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated

import sqlglot
from pydantic import AfterValidator
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types

_CLOCK_AND_CHANCE = (
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentDatetime,
    exp.Rand,
    exp.Randn,
    exp.Randstr,
    exp.Uniform,
    exp.Uuid,
    exp.CurrentUser,
    exp.SessionUser,
)
# What Spark answers from its clock, by chance, from its session, from a file's place or from any Java method, by the
# name that a text gives it. A test holds this and the classes above against Spark's own registry of functions.
_UNREPEATABLE = {
    "aes_encrypt",
    "curdate",
    "current_catalog",
    "current_database",
    "current_path",
    "current_schema",
    "current_timezone",
    "input_file_block_length",
    "input_file_block_start",
    "input_file_name",
    "java_method",
    "localtimestamp",
    "monotonically_increasing_id",
    "now",
    "rand",
    "randn",
    "random",
    "randstr",
    "reflect",
    "shuffle",
    "spark_partition_id",
    "try_reflect",
    "unix_timestamp",
    "user",
    "uuid",
    "version",
}
# Spark takes these names for functions where the table has no such column, quoted or not. `user` is one, too: it is
# left to be the column that many tables have, and a table without it is refused when the pipeline starts.
_UNREPEATABLE_WITHOUT_PARENTHESES = {
    "current_date",
    "current_time",
    "current_timestamp",
    "current_user",
    "session_user",
}
# Spark reads these texts as the present day or moment where it makes a time of them; 'epoch' stays where it is.
_MOVING_TIME = re.compile(r"[\x00-\x20]*(now|(today|tomorrow|yesterday)\s*[\w/:+-]*)[\x00-\x20]*", re.IGNORECASE)
_TEXTS = (exp.Literal, exp.RawString, exp.National)
# A text as it is written, or what has one inside that is looked at by itself.
_AS_WRITTEN = (*_TEXTS, exp.Paren, exp.Collate)
# Functions whose names have one of these take a text as a time.
_OF_TIME = (
    "date",
    "time",
    "day",
    "month",
    "year",
    "trunc",
    "hour",
    "minute",
    "second",
    "quarter",
    "week",
    "unix",
    "ts_or_ds",
)
# What gives a text, or bytes or an array where it is given such, and never a time; sqlglot does not know their type.
_GIVING_TEXT = (
    exp.Substring,
    exp.SubstringIndex,
    exp.SplitPart,
    exp.RegexpSubstr,
    exp.Left,
    exp.Pad,
    exp.Overlay,
    exp.Concat,
    exp.Elt,
    exp.Reverse,
    exp.Decode,
    exp.ParseUrl,
)
_GIVING_TEXT_NAMES = {
    "bin",
    "btrim",
    "conv",
    "format_number",
    "make_valid_utf8",
    "mask",
    "printf",
    "quote",
    "to_varchar",
    "try_url_decode",
    "url_decode",
    "url_encode",
    "xpath_string",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)
_COMPARING = (*_COMPARISONS, exp.Nullif, exp.DecodeCase, exp.Greatest, exp.Least, exp.ArrayContains)
_ARITHMETIC = (exp.Add, exp.Sub)
_GENERATORS = (exp.Explode, exp.Posexplode, exp.Inline, exp.Stack)
_GENERATOR_NAMES = {"inline_outer", "json_tuple", "variant_explode", "variant_explode_outer"}
_WINDOW_NAMES = {"window", "session_window"}
_OVER_ONLY = (
    exp.Lag,
    exp.Lead,
    exp.NthValue,
    exp.Rank,
    exp.DenseRank,
    exp.PercentRank,
    exp.CumeDist,
    exp.Ntile,
    exp.RowNumber,
)
_AGGREGATE_CLAUSES = (exp.Filter, exp.WithinGroup)
_ORDER_DEPENDENT = (exp.First, exp.Last, exp.AnyValue, exp.FirstValue, exp.LastValue, exp.Mode, exp.ApproxTopK)
_ORDER_DEPENDENT_NAMES = {"histogram_numeric"}
# Aggregates that gather values in the order in which they are read, and what makes that order not matter.
_GATHERING = (exp.ArrayAgg, exp.ArrayUniqueAgg, exp.GroupConcat)
_ORDER_FREE = (exp.ArraySort, exp.ArraySize)
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
    "hll_sketch_agg",
    "hll_union_agg",
    "mean",
    "std",
    "kurtosis",
    "regr_count",
    "regr_r2",
    "try_avg",
    "try_sum",
}

# Functions that raise at a value they do not accept, also where casts and divisions give null -> what does not.
_RAISING = {
    "aes_decrypt": "use try_aes_decrypt",
    "assert_true": "write the condition alone, with on_failure='fail' if the stream is to stop",
    "parse_json": "use try_parse_json",
    "raise_error": "write the condition alone, with on_failure='fail' if the stream is to stop",
    "to_binary": "use try_to_binary",
    "to_number": "use try_to_number",
    "url_decode": "use try_url_decode",
    "validate_utf8": "use try_validate_utf8",
    "variant_get": "use try_variant_get",
}


def syntax(sql: str) -> exp.Expr:
    """The syntax tree of an expression that was taken, or that a rule makes of columns and values it knows.

    It is not to be changed.
    """
    return _syntax(sql)


@cache
def parse(sql: str) -> exp.Expr:
    """The syntax tree of one Spark SQL expression; not to be changed.

    Raises:
        ValueError: if the text is no single expression, or can give another answer when it is asked again.
    """
    tree = _syntax(sql)
    _refuse_what_does_not_repeat(tree, sql)
    return tree


@cache
def _syntax(sql: str) -> exp.Expr:
    """The syntax tree of one expression that Spark can run on a stream, whether or not it answers the same again."""
    try:
        select = sqlglot.parse_one(f"SELECT {sql}", dialect="spark")
    except SqlglotError as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a Spark SQL expression, got {sql!r} ({first_line})") from None
    if not isinstance(select, exp.Select) or len(select.expressions) != 1 or _clauses(select, "expressions"):
        raise ValueError(f"expected a single Spark SQL expression, got {sql!r}")
    # sqlglot passes over these, and Spark does not.
    if sqlglot.tokenize(sql, dialect="spark")[-1].token_type in (TokenType.COMMA, TokenType.SEMICOLON):
        raise ValueError(f"expected a single Spark SQL expression, got {sql!r}: leave out what it ends with")
    tree: exp.Expr = select.expressions[0]
    if isinstance(tree, exp.Alias):
        raise ValueError(f"expected an expression without an alias, got {sql!r}: the mapping's key names it")
    if tree.find(exp.Subquery, exp.Select):
        raise ValueError(
            f"expected an expression without a subquery, got {sql!r}: name columns of the table that is read"
        )
    if tree.find(exp.Window, *_OVER_ONLY):
        raise ValueError(f"Spark cannot run OVER (...) on a stream, got {sql!r}: use Aggregate or TopN")
    if tree.find(exp.Placeholder, exp.Parameter, exp.SessionParameter):
        raise ValueError(f"expected an expression without parameters, got {sql!r}: write the value")
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        raise ValueError(f"expected the names of columns instead of *, got {sql!r}")
    for node in tree.find_all(exp.Func):
        if isinstance(node.parent, exp.Dot) and node.arg_key == "expression":
            raise ValueError(f"expected functions of Spark by their plain names, got {sql!r}: leave out the catalog")
        if isinstance(node, _GENERATORS) or _name(node) in _GENERATOR_NAMES:
            raise ValueError(
                f"{_name(node)}() makes several rows of one event, which the ledger counts once; got {sql!r}: use "
                "transform, filter or aggregate on the array"
            )
        if _name(node) in _WINDOW_NAMES:
            raise ValueError(f"{_name(node)}() is no column of an event, got {sql!r}: use Aggregate(window=...)")
        if _name(node) == "identifier":
            raise ValueError(f"expected names as they are, got identifier() in {sql!r}: write the column's name")
    return tree


def _refuse_what_does_not_repeat(tree: exp.Expr, sql: str) -> None:
    for node in tree.find_all(exp.Func):
        if isinstance(node, _CLOCK_AND_CHANCE) or _name(node) in _UNREPEATABLE:
            raise ValueError(_unrepeatable(f"{_name(node)}() answers", sql))
    for column in tree.find_all(exp.Column):
        if not column.table and column.name.lower() in _UNREPEATABLE_WITHOUT_PARENTHESES:
            raise ValueError(_unrepeatable(f"{column.name} is a function of Spark and answers", sql))
    moving = next((text for text in tree.find_all(*_TEXTS) if _is_moving_time(text)), None)
    if moving is not None:
        raise ValueError(
            f"Spark reads {moving.name!r} as the present day or moment where it makes a time of it, another one each "
            f"time, so a replayed batch would not repeat its rows; got {sql!r}: use a column of the event, such as "
            f"_ingest_time; what is a text is compared as one: CAST(a AS STRING) = {moving.name!r}"
        )
    computed = next((node for node in tree.find_all(exp.Condition) if _is_computed_time(node)), None)
    if computed is not None:
        text = computed.sql(dialect="spark")
        raise ValueError(
            f"{text} is a text that Spark computes before it makes a time of it: one such as 'now' would be another "
            f"time each time, so a replayed batch would not repeat its rows; got {sql!r}: write the text itself, such "
            f"as '2026-01-31'; what is a text is compared as one: CAST(a AS STRING) = {text}"
        )


def _unrepeatable(what: str, sql: str) -> str:
    return (
        f"{what} differently each time, so a replayed batch would not repeat its rows; got {sql!r}: use a column of "
        "the event, such as _ingest_time"
    )


def _is_moving_time(text: exp.Expr) -> bool:
    """Whether this is a text such as 'now' that Spark may read as a time: cast to one, or next to what may be one."""
    if not (isinstance(text, exp.RawString | exp.National) or text.args.get("is_string")):
        return False
    return bool(_MOVING_TIME.fullmatch(text.name)) and _becomes_time(text)


def _is_computed_time(tree: exp.Expr) -> bool:
    """Whether this is a text computed of constants alone that Spark may read as a time; what it is, only Spark knows.

    Words such as 'now' are read so in what is known before any row is; in a column they are texts like others.
    """
    if isinstance(tree, _AS_WRITTEN) or not _is_constant(tree):
        return False
    of_unknown_type = annotate_types(tree.copy(), dialect="spark").is_type(exp.DType.UNKNOWN)
    if isinstance(tree.parent, exp.Cast) and of_unknown_type and not _is_of_time(tree):
        return tree.parent.is_type(*exp.DataType.TEMPORAL_TYPES)
    return _gives_text(tree) and _becomes_time(tree)


def _is_constant(tree: exp.Expr) -> bool:
    """Whether the expression reads no column, and no variable of a lambda."""
    return not any(
        isinstance(node, exp.Column)
        or (isinstance(node, exp.Identifier) and not _names_part(node) and not isinstance(node.parent, exp.Anonymous))
        for node in tree.walk()
    )


def _names_part(name: exp.Identifier) -> bool:
    """Whether this is the name of a field, not of what has it."""
    return isinstance(name.parent, exp.PropertyEQ) or (
        isinstance(name.parent, exp.Dot) and name.arg_key == "expression"
    )


def _is_of_time(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Extract) or any(word in _name(tree) for word in _OF_TIME)


def _becomes_time(text: exp.Expr) -> bool:
    above = text.parent
    if isinstance(above, exp.If) and isinstance(above.parent, exp.Case):
        if text.arg_key == "this":  # CASE a WHEN 'now'
            return not _is_known_text(above.parent.this)
        above = above.parent
    match above:
        case None:
            return False
        case exp.Cast() if above.is_type(*exp.DataType.TEMPORAL_TYPES):
            return True
        case _ if isinstance(above, _COMPARING):
            return not any(_is_known_text(other) for other in above.iter_expressions() if other is not text)
        case _ if isinstance(above, _ARITHMETIC):
            return True
        case exp.Func() if _is_of_time(above):
            return True
        case (
            exp.Case() | exp.If() | exp.Coalesce() | exp.Nvl2()
        ):  # a time in one branch makes times of the texts in the others
            return not all(_gives_text(branch) for branch in _branches(above)) or _becomes_time(above)
        case exp.Paren() | exp.Collate():
            return _becomes_time(above)
    return _is_constant(above) and _gives_text(above) and _becomes_time(above)


def _branches(tree: exp.Case | exp.If | exp.Coalesce | exp.Nvl2) -> Iterator[exp.Expr]:
    """What the expression may give, but for null."""
    cases = tree.args["ifs"] if isinstance(tree, exp.Case) else [tree]
    found = (
        [tree.this, *tree.expressions]
        if isinstance(tree, exp.Coalesce)
        else [*(case.args["true"] for case in cases), tree.args.get("default"), tree.args.get("false")]
    )
    return (branch for branch in found if branch is not None and not isinstance(branch, exp.Null))


def _is_known_text(tree: exp.Expr) -> bool:
    """Whether this is a text whatever the columns are; a literal is none, as it becomes what it is compared with."""
    return tree.find(exp.Column, exp.Identifier) is not None and _gives_text(tree)


def _gives_text(tree: exp.Expr) -> bool:
    tree = tree.unnest()
    if isinstance(tree, _GIVING_TEXT) or _name(tree) in _GIVING_TEXT_NAMES:
        return True
    if isinstance(tree, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        return all(_gives_text(branch) for branch in _branches(tree))
    return annotate_types(tree.copy(), dialect="spark").is_type(*exp.DataType.TEXT_TYPES)


def _clauses(select: exp.Select, *expected: str) -> bool:
    """Whether the text went on after what was expected: WHERE, LIMIT, DISTINCT, …."""
    return any(value for name, value in select.args.items() if name not in expected)


def _name(node: exp.Expr) -> str:
    """What a text calls this function, whatever its quotes and its case; '' for what is no function."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def is_aggregate(tree: exp.Expr) -> bool:
    """Whether any part of the expression is an aggregate function."""
    return any(_is_aggregate_function(node) for node in tree.walk())


def _is_aggregate_function(node: exp.Expr) -> bool:
    if isinstance(node, exp.Any):  # any(a) is an aggregate, a = any(b) is none
        return node.arg_key != "expression"
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and _name(node) in _AGGREGATE_NAMES)


def aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """The aggregate functions of an expression, without their clauses."""
    return [node for node in tree.walk() if _is_aggregate_function(node)]


def function_name(node: exp.Expr) -> str:
    """What sqlglot calls a function, whatever its quotes and its case, or the text where it does not know it; '' for
    what is no function."""
    return _name(node)


def columns(sql: str) -> frozenset[str]:
    """The columns that the expression reads (lambda variables are none).

    Of one that was taken, or that a rule makes of columns and values whose types it knows.
    """
    return frozenset(column.parts[0].name for column in _syntax(sql).find_all(exp.Column))


def only_counts(sql: str) -> bool:
    """Whether the value of an aggregate is a count, which tells no value of what it counts."""
    return isinstance(parse(sql), exp.Count | exp.CountIf | exp.ApproxDistinct)


def ungrouped_columns(sql: str) -> frozenset[str]:
    """The columns that the expression reads outside of any aggregate: only those of the key may stand there."""
    return frozenset(
        column.parts[0].name
        for column in parse(sql).find_all(exp.Column)
        if not any(_is_aggregate_function(node) or isinstance(node, _AGGREGATE_CLAUSES) for node in _above(column))
    )


def _above(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def to_duckdb(sql: str) -> str:
    """The same expression in DuckDB's dialect."""
    return parse(sql).sql(dialect="duckdb")


def known_to_duckdb(sql: str) -> str:
    """In DuckDB's dialect, an expression that was taken, or that a rule makes of columns and values it knows."""
    return _syntax(sql).sql(dialect="duckdb")


def raising_function(sql: str) -> tuple[str, str] | None:
    """The first function of the expression that raises at some values even with ANSI mode off, and what to use."""
    found = (_name(node) for node in parse(sql).find_all(exp.Func))
    return next(((name, _RAISING[name]) for name in found if name in _RAISING), None)


def _check_scalar(sql: str) -> str:
    if is_aggregate(parse(sql)):
        raise ValueError(f"expected an expression of one row, got the aggregate {sql!r}: use Aggregate")
    return sql


def _check_condition(sql: str) -> str:
    root = parse(_check_scalar(sql)).unnest()
    if isinstance(root, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod | exp.Neg | exp.Literal | exp.DPipe):
        raise ValueError(f"expected a condition such as 'quantity > 0', got {sql!r}")
    return sql


def _check_aggregate(sql: str) -> str:
    tree = parse(sql)
    if not is_aggregate(tree):
        raise ValueError(f"expected an aggregate such as 'sum(quantity)', got {sql!r}")
    found = aggregates(tree)
    if any(_is_aggregate_function(above) for node in found for above in _above(node)):
        raise ValueError(f"expected no aggregate inside another, got {sql!r}")
    if tree.find(exp.Distinct):
        raise ValueError(
            f"Spark cannot count distinct values incrementally, got {sql!r}: use approx_count_distinct(...)"
        )
    order_dependent = next(
        (n for n in tree.walk() if isinstance(n, _ORDER_DEPENDENT) or _name(n) in _ORDER_DEPENDENT_NAMES), None
    )
    if order_dependent:
        raise ValueError(
            f"{_name(order_dependent)}() depends on the order in which rows are read, got {sql!r}: "
            "use min_by(value, event_time) or max_by(value, event_time)"
        )
    for node in found:
        if isinstance(node, _GATHERING) and not isinstance(node.this, exp.Order):
            gathered = node.sql(dialect="spark")
            if isinstance(node, exp.GroupConcat):
                way_out = f"say which order: {gathered} WITHIN GROUP (ORDER BY ...)"
            elif isinstance(node.parent, _ORDER_FREE) and not node.parent.args.get("expression"):
                continue
            else:
                way_out = f"use sort_array({gathered})"
            raise ValueError(
                f"{gathered} depends on the order in which rows are read, so a replayed batch could give another "
                f"value; got {sql!r}: {way_out}"
            )
    return sql


def split_order_by(sql: str) -> tuple[str, ...]:
    """The terms of an ORDER BY list, in Spark SQL.

    Raises:
        ValueError: if the text is no such list.
    """
    return tuple(term.sql(dialect="spark") for term in _order_terms(sql))


def order_terms(sql: str) -> tuple[tuple[str, str], ...]:
    """The expression of each term of an ORDER BY list, and what says in which direction it goes: ` DESC`, or ``."""
    pairs = ((term.sql(dialect="spark"), term.this.sql(dialect="spark")) for term in _order_terms(sql))
    return tuple((expression, whole.removeprefix(expression)) for whole, expression in pairs)


def order_by_columns(sql: str) -> frozenset[str]:
    """The columns that an ORDER BY list reads."""
    return frozenset(name for term in _order_terms(sql) for name in columns(term.this.sql(dialect="spark")))


def _order_terms(sql: str) -> list[exp.Ordered]:
    problem = f"expected an ORDER BY list such as 'units DESC, product_id', got {sql!r}"
    try:
        select = sqlglot.parse_one(f"SELECT 1 ORDER BY {sql}", dialect="spark")
    except SqlglotError:
        raise ValueError(problem) from None
    order = select.args.get("order") if isinstance(select, exp.Select) else None
    if not isinstance(select, exp.Select) or order is None or _clauses(select, "expressions", "order"):
        raise ValueError(problem)
    return list(order.expressions)


def _check_order_by(sql: str) -> str:
    for term in _order_terms(sql):
        text = term.this.sql(dialect="spark")
        if not columns(_check_scalar(text)):
            raise ValueError(f"expected columns to order by, got {text!r} in {sql!r}")
    return sql


def check_type(sql: str) -> str:
    """A Spark SQL column type, as text.

    Raises:
        ValueError: if it is no type that a table of Spark can have.
    """
    try:
        tree = exp.DataType.build(sql, dialect="spark")
    except (SqlglotError, ValueError):
        tree = None
    # sqlglot also knows the types of other engines, and skips what it does not understand.
    if tree is None or not _is_spark_type(tree) or _spelled(tree.sql(dialect="spark")) != _spelled(sql):
        raise ValueError(f"expected a Spark SQL type such as 'STRING' or 'DECIMAL(10, 2)', got {sql!r}")
    return sql


_SPARK_TYPES = {
    exp.DType.BOOLEAN,
    exp.DType.TINYINT,
    exp.DType.SMALLINT,
    exp.DType.INT,
    exp.DType.BIGINT,
    exp.DType.FLOAT,
    exp.DType.DOUBLE,
    exp.DType.DECIMAL,
    exp.DType.TEXT,
    exp.DType.BINARY,
    exp.DType.DATE,
    exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPLTZ,
    exp.DType.TIMESTAMPNTZ,
    exp.DType.VARIANT,
}
_ARITY = {exp.DType.ARRAY: (1, 1), exp.DType.MAP: (2, 2), exp.DType.STRUCT: (1, 1000)}
_ALIASES = {
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "SHORT": "SMALLINT",
    "BYTE": "TINYINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
}
_NUMERIC = {"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}


def _is_spark_type(tree: exp.Expr) -> bool:
    if not isinstance(tree, exp.DataType):
        return False
    parts = [part.kind if isinstance(part, exp.ColumnDef) else part for part in tree.expressions]
    if tree.this in _ARITY:
        fewest, most = _ARITY[tree.this]
        return fewest <= len(parts) <= most and all(part is not None and _is_spark_type(part) for part in parts)
    if tree.this == exp.DType.DECIMAL and parts:
        digits = [int(part.name) if part is not None and part.name.isdecimal() else 99 for part in parts]
        precision, scale = (*digits, 0)[:2]
        return len(digits) <= 2 and 1 <= precision <= 38 and scale <= precision
    return tree.this in _SPARK_TYPES and not parts


def _spelled(sql: str) -> str:
    words = re.sub(r"[A-Z]+", lambda word: _ALIASES.get(word[0], word[0]), sql.upper())
    return re.sub(r"[\s:]+", "", words)


def is_numeric(sql_type: str) -> bool:
    """Whether a column of this type holds numbers."""
    return re.split(r"[\s(]", _spelled(sql_type))[0] in _NUMERIC


def is_text(sql_type: str) -> bool:
    """Whether a column of this type holds texts."""
    return _spelled(sql_type) == "STRING"


def is_nested(sql_type: str) -> bool:
    """Whether a value of this type holds others."""
    return "<" in sql_type or _spelled(sql_type) == "VARIANT"


def has_keys_that_json_lacks(sql_type: str) -> bool:
    """Whether a map in this type has other keys than texts."""
    tree = exp.DataType.build(sql_type, dialect="spark")
    maps = [part for part in tree.find_all(exp.DataType) if part.this == exp.DType.MAP]
    return any(part.expressions[0].this != exp.DType.TEXT for part in maps)


_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f,;{}()=.`]")
_NAME = re.compile(r"""(?:[\w@"$#%?/-]|:(?!:))+""")


def check_column_names(names: Iterable[str], *, otherwise: str = "choose another name") -> None:
    """Refuses names that Tidemark keeps for itself, that a table cannot hold, or that Spark takes for one.

    Args:
        names: of columns.
        otherwise: what to do about one that a table cannot hold.

    Raises:
        ValueError: if a name is empty, starts with an underscore, has a blank, a control character, one of `,;{}()=.`
            or a backtick, or differs from another one at most in case.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise ValueError("expected a column name, got an empty one")
        if name.startswith("_"):
            raise ValueError(f"column names that start with an underscore are Tidemark's own, got {name!r}")
        if _FORBIDDEN.search(name):
            raise ValueError(
                "expected a column name without blanks, dots, backticks, control characters or any of ,;{}()=, which a "
                f"Delta table cannot keep; got {name!r}: {otherwise}"
            )
        if name.casefold() in seen:
            raise ValueError(
                f"expected each column once, got {seen[name.casefold()]!r} and {name!r}: Spark does not tell them apart"
            )
        seen[name.casefold()] = name


def check_plain_column(name: str) -> str:
    """A column by its plain name, which is never read as SQL: `order`, `@timestamp` and `event-time` are names, too.

    Raises:
        ValueError: if the text is an expression, a field of a struct or in quotes.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"expected the plain name of a column, got {name!r}: compute it in a Select before, or in Table(select=...)"
        )
    return name


Scalar = Annotated[str, AfterValidator(_check_scalar)]
"""A Spark SQL expression over the columns of one row."""

Condition = Annotated[str, AfterValidator(_check_condition)]
"""A Spark SQL condition over the columns of one row."""

AggregateExpression = Annotated[str, AfterValidator(_check_aggregate)]
"""A Spark SQL expression over the rows of a group, one that Spark can compute incrementally."""

OrderBy = Annotated[str, AfterValidator(_check_order_by)]
"""An ORDER BY list."""

PlainColumn = Annotated[str, AfterValidator(check_plain_column)]
"""The name of a column, without quotes."""

SqlType = Annotated[str, AfterValidator(check_type)]
"""A Spark SQL column type."""
