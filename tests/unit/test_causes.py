"""Why a driver ended, from what is left of it."""

import pytest

from spark_jobs.control.supervision.causes import cause_of_end
from spark_jobs.control.supervision.pulse import DRAINED

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
HEAP = 'Exception in thread "stream execution" java.lang.OutOfMemoryError: Java heap space'
LOST = "SessionLostError: Spark has ended in this driver (its JVM ended with exit code 52). It ends."


def cause(*, killed=None, ending=None, exit_code=1, lines=()):
    return cause_of_end(killed=killed, ending=ending, exit_code=exit_code, lines=lines)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ({"killed": "Spark has not answered", "exit_code": -9}, "its supervisor ended it: Spark has not answered"),
        ({"ending": LOST, "lines": (HEAP, REFUSED)}, HEAP),
        ({"ending": LOST, "lines": (REFUSED,)}, LOST),
        # What Java had said before and has lived through is no cause of something else.
        ({"ending": "FencedError: a newer term", "lines": (HEAP,), "exit_code": 3}, "FencedError: a newer term"),
        (
            {"exit_code": -9, "lines": ("2026-03-01 INFO batch 3",)},
            "it was ended by SIGKILL: by somebody, or by the system because memory ran out",
        ),
        ({"exit_code": -15}, "it was ended by SIGTERM"),
        ({"lines": ("error: no jars. Run `make setup`.", "a word of Java's")}, "no jars. Run `make setup`."),
        ({"lines": ("Traceback (most recent call last):", "KeyError: 'x'")}, "it said last: KeyError: 'x'"),
        ({"ending": DRAINED, "lines": (), "exit_code": 1}, "it wrote no output"),
    ],
)
def test_the_cause_is_told_and_not_what_followed_from_it(left, expected):
    assert cause(**left) == expected


def test_the_last_line_of_a_log_does_not_explain_an_end_that_nobody_saw():
    assert cause(exit_code=None, lines=("2026-03-01 INFO batch 3",)).startswith("exit code not known")


def test_a_very_long_word_is_cut():
    assert len(cause(ending="ValueError: " + "x" * 10_000)) <= 400
