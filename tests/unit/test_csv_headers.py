"""The names in headers of CSV: held against what Python's own writer and reader make of them."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.plan.csv_headers import fields_of, header_line, header_pattern, names_in

DELIMITERS = [",", ";", "\t", "|", " ", "^", "]", "-", "x"]
NAME = st.text('ab",;|\t .*\\é', min_size=1, max_size=5).filter(lambda name: name.strip(" "))
NAMES = st.lists(NAME, min_size=1, max_size=4)


def written(names, delimiter, quoting):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(names)
    return out.getvalue()


def read(line, delimiter):
    """What Python reads of a line, none of whose quotes may go on behind its end or stand in the midst of a field."""
    try:
        return tuple(next(csv.reader([line], delimiter=delimiter, strict=True)))
    except csv.Error:
        return None


class TestNames:
    @given(NAMES, st.sampled_from(DELIMITERS), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    def test_what_python_writes_is_read(self, names, delimiter, quoting):
        expected = tuple(name if delimiter == " " else name.strip(" ") for name in names)
        line = written(names, delimiter, quoting)
        assert names_in(line, delimiter) == expected
        assert names_in(f"\ufeff{line}\r", delimiter) == expected
        assert names_in(header_line(expected, delimiter), delimiter) == expected

    @given(st.text('a",', max_size=9))
    def test_of_any_line_there_are_the_names_that_python_reads_or_none(self, line):
        expected = read(line, ",")
        assert names_in(line, ",") == (expected or ())

    @given(NAMES, st.sampled_from(DELIMITERS), st.lists(st.sampled_from(["", " ", "  "]), min_size=2, max_size=2))
    def test_blanks_around_names_and_their_quotes_do_not_matter(self, names, delimiter, blanks):
        before, after = blanks if delimiter != " " else ("", "")
        line = delimiter.join(f"{before}{written([name], delimiter, csv.QUOTE_ALL)}{after}" for name in names)
        assert names_in(line, delimiter) == names_in(written(names, delimiter, csv.QUOTE_ALL), delimiter) != ()

    @given(NAMES, NAMES, st.sampled_from(DELIMITERS))
    def test_only_a_header_of_the_same_names_is_one_again(self, names, others, delimiter):
        line = written(names, delimiter, csv.QUOTE_MINIMAL)
        found, other = names_in(line, delimiter), names_in(written(others, delimiter, csv.QUOTE_ALL), delimiter)
        assert bool(re.search(header_pattern(other, delimiter), line)) == (found == other)

    @pytest.mark.parametrize(
        ("line", "delimiter", "names"),
        [
            ('id,"name, full",amount', ",", ("id", "name, full", "amount")),
            ('\ufeff "id" ; name;"a ""b"""\r', ";", ("id", "name", 'a "b"')),
            ('5" pipe|"a|b"', "|", ('5" pipe', "a|b")),
            ('id,"name', ",", ()),
            ('id,"name"s', ",", ()),
            ("id," + "x" * 200_000, ",", ()),
        ],
    )
    def test_lines_that_are_headers_and_that_are_none(self, line, delimiter, names):
        assert names_in(line, delimiter) == names

    def test_of_a_line_that_is_no_header_the_fields_can_be_counted(self):
        assert fields_of('1,"carol, open', ",") == ("1", "carol, open")
