"""Which lines of CSV are parts of one value: held against Python's own reader."""

import csv
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.transforms.quotes import Block, Effect, parts_of_values, patterns, values_over_lines

DELIMITERS = [",", ";", "\t", "|", " ", "^", "]", "-", "&", "x"]
TEXT = st.text('a",; \n', max_size=6)


def effect(line, delimiter=","):
    found = patterns(delimiter)
    kinds = {Effect.OPENS: found.opens, Effect.CLOSES: found.closes, Effect.REOPENS: found.reopens}
    return sum((kind for kind, regex in kinds.items() if re.search(regex, line)), Effect(0))


def telling(text, delimiter):
    """The lines that would not stay inside of quotes."""
    stays = patterns(delimiter).stays
    lines = [(number, line) for number, line in enumerate(text.split("\n")) if not re.search(stays, line)]
    return [(number, effect(line, delimiter)) for number, line in lines]


def needed(lines):
    """Those that open, and behind each the next one."""
    opened = False
    for number, found in lines:
        opens = bool(found & (Effect.OPENS | Effect.REOPENS))
        if opens or opened:
            yield number, found
        opened = opens


def parts(text, delimiter=","):
    """The lines that belong to a value with a line's end in it."""
    lines = telling(text, delimiter)
    runs = list(values_over_lines(lines))
    assert list(values_over_lines(needed(lines))) == runs
    return {number for first, last in runs for number in range(first, last + 1)}


def parts_by_python(text, delimiter):
    reader = csv.reader([f"{line}\n" for line in text.split("\n")], delimiter=delimiter)
    found, before = set(), 0
    for _ in reader:
        if reader.line_num - before > 1:
            found |= set(range(before, reader.line_num))
        before = reader.line_num
    return found


@st.composite
def files(draw):
    """A file in which every value in quotes is closed, and other fields have quotes where they like."""
    delimiter = draw(st.sampled_from(DELIMITERS))

    def field():
        text = draw(TEXT)
        if draw(st.booleans()):
            padding = draw(st.sampled_from(["", " "])) if delimiter != " " else ""
            return '"' + text.replace('"', '""') + '"' + padding
        return text.replace("\n", "").replace(delimiter, "").lstrip('"')

    rows = draw(st.lists(st.integers(1, 3), max_size=6))
    return delimiter, "\n".join(delimiter.join(field() for _ in range(fields)) for fields in rows)


@given(files())
@settings(max_examples=400)
def test_parts_of_values_are_those_that_python_reads(file):
    delimiter, text = file
    assert parts(text, delimiter) == parts_by_python(text, delimiter)


@given(st.text('a,"', max_size=12))
@settings(max_examples=400)
def test_a_line_opens_quotes_where_python_reads_on(line):
    rows = csv.reader([f"{line}\n", "end"])
    assert bool(effect(line) & Effect.OPENS) == any(field.endswith("\nend") for row in rows for field in row)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"a\nb\n",5\nc,1', {0, 1, 2}),  # the closing line looks like one that opens
        ('"a\n",5,"b\n",6\nc', {0, 1, 2}),
        ('"a\nb"" ""c\n""\nd",1\ne', {0, 1, 2, 3}),
        ('"a\nb" ,1\nc', {0, 1}),
        ('5" pipe,1,"a\nb"\nc', {0, 1}),
        ('\ufeff"a\nb"\nc', {0, 1}),
        ('5" pipe,3\na,1\n7" pipe,2', set()),
        ('1, "a\nb\nc"', set()),  # behind a blank the quote is a character
        ('c",1\na\n"b"', set()),
        ('"slip,1\na\nb', set()),  # nothing closes it
        ('"slip,1\na\n5" pipe,2\nb", 3', set()),  # inside of quotes there would be two
        ('"slip,1\na\n"b"\nc', set()),
        ('"slip,1\n"a\nb"', {1, 2}),
        ('"a\nb","slip\nc\n"d",1', {0, 1}),
    ],
)
def test_slips_and_quotes_that_are_characters_spoil_no_other_line(text, lines):
    assert parts(text) == lines


@given(st.lists(files(), min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_parts_are_found_in_files_that_are_read_in_pieces(drawn, chance: random.Random):
    pieces, expected = [], set()
    for name, (delimiter, text) in enumerate(drawn):
        lines = telling(text, delimiter)
        # The first line of a value is known without the others.
        expected |= {
            (name, number) for first, last in values_over_lines(lines) for number in range(first + 1, last + 1)
        }
        count = text.count("\n") + 1
        cuts = sorted({0, *chance.sample(range(count), chance.randint(0, count - 1)), count})
        pieces += [(name, begin, end, dict(lines)) for begin, end in pairwise(cuts)]
    chance.shuffle(pieces)
    blocks, numbered, places = [], [], {}
    for name, begin, end, found in pieces:
        # Each piece is read by a task of its own, which numbers its rows from elsewhere.
        first = len(blocks) << 33
        blocks.append(Block(str(name), begin, first, end - begin))
        for line in range(begin, end):
            places[first + line - begin] = name, line
        numbered += [(first + line - begin, found[line]) for line in range(begin, end) if line in found]
    runs = parts_of_values(numbered, blocks)
    marked = [places[number] for first, last in runs for number in range(first, last + 1)]
    assert len(marked) == len(set(marked))
    assert set(marked) == expected
