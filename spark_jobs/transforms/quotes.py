"""Values of CSV that go on behind a line's end: which lines of a file are parts of one.

Files are read line by line, so a line is known to lie inside of quotes only by the lines before it. What a single line
does is found by patterns, which Spark and Python read alike; what it means is found in the order of the file, from the
few lines that open quotes and those that follow them.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntFlag
from itertools import groupby

# Without groups that backtrack: Java would overflow its stack at a long line.
_UP_TO_QUOTE = r'[^"]*+(?:""[^"]*+)*+'
_END = r"(?![\s\S])"


class Effect(IntFlag):
    """What a line does; none of these: it has a quote where no value in quotes can have one."""

    OPENS = 1
    """Read as the begin of a row, it ends inside of quotes."""
    CLOSES = 2
    """Read from inside of quotes, it closes them where a field may end."""
    REOPENS = 4
    """Read from inside of quotes, it closes them and ends inside of others."""


@dataclass(frozen=True)
class Patterns:
    """Regular expressions that find what a line does, to be searched for.

    Attributes:
        opens: the line ends inside of quotes, if it begins a row.
        stays: the line says nothing, if it begins inside of quotes: each quote in it is doubled.
        closes: the line closes the quotes that it begins in.
        reopens: it does, and ends inside of others.
        broken: the line opens quotes, or has a field that goes on behind its closing quote.
    """

    opens: str
    stays: str
    closes: str
    reopens: str
    broken: str


def patterns(delimiter: str) -> Patterns:
    """What tells the effects of lines.

    A quote counts where a field begins with it: elsewhere, and behind blanks too, it is a character as any other.
    """
    sep = re.escape(delimiter)
    # What follows a closing quote belongs to the field, as in a field without quotes.
    field = rf'(?:"{_UP_TO_QUOTE}"|(?!"))[^{sep}]*+'
    ends_inside = rf'(?:{field}{sep})*+"{_UP_TO_QUOTE}{_END}'
    # Some programs pad a field behind its quotes.
    ends = rf'" *(?={sep}|{_END})'
    sound = rf'(?:"{_UP_TO_QUOTE}{ends}|(?!")[^{sep}]*+)'
    return Patterns(
        opens=rf"\A\ufeff?+{ends_inside}",
        stays=rf"\A{_UP_TO_QUOTE}{_END}",
        closes=rf"\A{_UP_TO_QUOTE}{ends}",
        reopens=rf"\A{_UP_TO_QUOTE}{ends}{sep}{ends_inside}",
        broken=rf'\A\ufeff?+(?:{sound}{sep})*+"{_UP_TO_QUOTE}(?!{ends})',
    )


def values_over_lines(lines: Iterable[tuple[int, Effect]]) -> Iterator[tuple[int, int]]:
    """Where values of one file begin and end that have line ends in them: (first, last) line, both parts of it.

    A value may begin on the line on which the one before ends. An opening quote is a slip of its own line, and no
    reason to doubt the others, if no later line closes it, or if the next one with a single quote has it where no
    value in quotes can have one.

    Args:
        lines: (number, effect) in the order of the file, without those that would stay inside; at least those that
            open quotes, and the next behind each of them.
    """
    opened: int | None = None
    for number, effect in lines:
        if opened is not None and effect & Effect.CLOSES:
            yield opened, number
            opened = number if effect & Effect.REOPENS else None
        else:
            opened = number if effect & Effect.OPENS else None


@dataclass(frozen=True, order=True)
class Block:
    """A piece of a file that was read on its own; its rows have consecutive numbers.

    Attributes:
        file: its name.
        start: where in the file it begins.
        first: number of its first row.
        rows: how many it has.
    """

    file: str
    start: int
    first: int
    rows: int


def parts_of_values(lines: Iterable[tuple[int, Effect]], blocks: Iterable[Block]) -> Iterator[tuple[int, int]]:
    """The rows of a batch that go on with a value which a row before them has begun: (first, last) of each run.

    Args:
        lines: as for `values_over_lines`, of several files, by the number of the row; in any order.
        blocks: all that were read of these files. Those of one file may be numbered in another order than its own.
    """
    ordered = sorted(blocks)
    by_number = sorted(range(len(ordered)), key=lambda index: ordered[index].first)
    firsts = [ordered[index].first for index in by_number]
    placed = sorted((by_number[bisect_right(firsts, number) - 1], number, effect) for number, effect in lines)
    for _, of_file in groupby(placed, key=lambda line: ordered[line[0]].file):
        found = list(of_file)
        for begin, end in values_over_lines((index, effect) for index, (_, _, effect) in enumerate(found)):
            (from_block, opening, _), (to_block, closing, _) = found[begin], found[end]
            for index in range(from_block, to_block + 1):
                block = ordered[index]
                first = opening + 1 if index == from_block else block.first
                last = closing if index == to_block else block.first + block.rows - 1
                if first <= last:
                    yield first, last
