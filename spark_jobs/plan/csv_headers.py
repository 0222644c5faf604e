"""The header of a CSV file: a line of CSV, with what programs put around its names.

A name may stand in quotes, and has to where the delimiter is in it; blanks around it, a byte order mark and a carriage
return are no part of it. Python tells the names of the few lines that are the first of a file; whether a row is the
header once more is asked of each row, by a pattern that Java and Python read alike.
"""

import csv
import re
from collections.abc import Sequence

_BYTE_ORDER_MARK = "\ufeff"
_END = r"(?![\s\S])"


def names_in(line: str, delimiter: str) -> tuple[str, ...]:
    """The names in a header; of a line that is none for its quotes: nothing.

    Args:
        line: the first of a file.
        delimiter: of its fields.
    """
    found = fields_of(line, delimiter)
    return found if re.search(header_pattern(found, delimiter), line) else ()


def fields_of(line: str, delimiter: str) -> tuple[str, ...]:
    """The fields of a line, if need be of one that leaves a quote open; nothing where Python cannot tell them."""
    blanks = delimiter != " "
    text = line.removeprefix(_BYTE_ORDER_MARK).rstrip("\r")
    try:
        found = next(csv.reader([text], delimiter=delimiter, skipinitialspace=blanks), [])
    except csv.Error:
        return ()
    return tuple(field.strip(" ") if blanks else field for field in found)


def header_line(names: Sequence[str], delimiter: str) -> str:
    """The header with these names, with no more quotes than it needs."""
    return delimiter.join(name if _is_plain(name, delimiter) else _quoted(name) for name in names)


def header_pattern(names: Sequence[str], delimiter: str) -> str:
    """A regular expression that finds the lines which are a header of these names, to be searched for."""
    blanks = "" if delimiter == " " else " *"

    def field(name: str) -> str:
        quoted = f'"{blanks}{re.escape(_quoted(name)[1:-1])}{blanks}"'
        either = f"(?:{quoted}|{re.escape(name)})" if _is_plain(name, delimiter) else quoted
        return f"{blanks}{either}{blanks}"

    return rf"\A{_BYTE_ORDER_MARK}?{re.escape(delimiter).join(map(field, names))}\r?{_END}"


def _is_plain(name: str, delimiter: str) -> bool:
    """Whether it is read as it stands; a quote counts only where a field begins with it."""
    return delimiter not in name and not name.startswith('"')


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
