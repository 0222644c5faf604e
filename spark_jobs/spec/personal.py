"""Values of personal columns, as people see them."""

import re
from collections.abc import Collection

MASK = "‹masked›"

_CONDITION = re.compile(r"(?:^|: )\[([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)?)\] ", re.MULTILINE)
"""How Spark says what kind of error it is: `[CAST_INVALID_INPUT] The value 'ada' of the type …`."""


def concealed(kind: str, said: str, columns: Collection[str]) -> str:
    """What an error was without its words, which may quote a value: its kind, and the columns that it names.

    Args:
        kind: of the error, such as `Conversion Error`.
        said: its words; nothing of them is shown but names that are known.
        columns: the names that are known.
    """
    kinds = dict.fromkeys((kind, *_CONDITION.findall(said)))
    named = [name for name in sorted(columns) if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said, re.IGNORECASE)]
    where = f" (columns named: {', '.join(named)})" if named else ""
    return f"{', '.join(kinds)}{where}: {MASK}, as it may quote a value of a personal column"


def is_personal(name: str, personal: Collection[str]) -> bool:
    """Whether a column is among the personal ones; names differ in case without being others."""
    return name.casefold() in {each.casefold() for each in personal}
