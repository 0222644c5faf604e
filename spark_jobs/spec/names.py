"""Names and values as they stand in SQL, one way for each engine, and in what a person reads.

A name may be anything that a table can have: a word of SQL, a sign that is an operator, a quote. In a text that is
parsed it stands only as what these functions give; so it is never more than a name.
"""

import re
from collections.abc import Callable, Iterable

Quoting = Callable[[str], str]
"""`in_spark`, `in_duckdb` or `in_delta`."""

_TABLE = re.compile(r"\w[\w-]*")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_WORDS_FOR_VALUES = ("null", "true", "false")
# What a terminal obeys, or shows in another order than it stands: control characters but for tabs and line ends, marks
# of direction, other ends of lines, and halves of characters, which no output can encode.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_PICTURES, _DELETE = 0x2400, 0x7F


def in_spark(name: str) -> str:
    """A name in an expression of Spark SQL, a predicate of its Delta tables, or a path to a column."""
    return "`" + name.replace("`", "``") + "`"


def in_duckdb(name: str) -> str:
    """A name in SQL of DuckDB: of a column, a table or a schema."""
    return '"' + name.replace('"', '""') + '"'


def in_delta(name: str) -> str:
    """A name in a predicate of `deltalake`, which takes names without quotes for lower-case ones."""
    return in_duckdb(name)


def in_property(name: str) -> str:
    """A name in a list of columns that is a property of a Delta table; one that needs no quotes has none."""
    return name if _PLAIN.fullmatch(name) else in_spark(name)


def text_in_spark(value: str) -> str:
    """A text as a literal of Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def text_in_duckdb(value: str) -> str:
    """A text as a literal of DuckDB."""
    return "'" + value.replace("'", "''") + "'"


def first_of(names: Iterable[str], quoted: Quoting) -> str:
    """The first of some columns that has a value; SQL.

    Args:
        names: of the columns, at least one.
        quoted: for which engine.
    """
    found = [quoted(name) for name in names]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def column_named(sql: str) -> str | None:
    """The column that an expression of Spark SQL names, in quotes or without; None: it is more than a name."""
    text = sql.strip()
    if quoted := _QUOTED.fullmatch(text):
        return quoted[1].replace("``", "`")
    return text if text.isidentifier() and text.casefold() not in _WORDS_FOR_VALUES else None


def is_table_folder(name: str) -> bool:
    """Whether a folder may hold a table: its name is made of letters, digits, underscores and hyphens."""
    return _TABLE.fullmatch(name) is not None


def visible(text: str) -> str:
    """A text of which a terminal obeys nothing: control characters are shown as pictures, such as `␛`, or codes."""
    return text if text.isascii() and text.isprintable() else _OBEYED.sub(_picture, text)


def visible_line(text: str) -> str:
    """The same of what is to stay in one line."""
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == _DELETE else f"\\u{code:04x}"
