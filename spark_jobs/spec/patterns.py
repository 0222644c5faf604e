"""Regular expressions that Java (Spark) and RE2 (DuckDB) read alike: the only ones that a rule takes.

Left out is what one of them does not have, or reads otherwise: look-around, back references, `\\s` (only Java counts
the vertical tab), `\\b` (letters of other alphabets), `^` and `$` (line ends), classes inside classes, possessive
quantifiers. A dot is any character, line ends included.
"""

import re
import warnings

_ESCAPES = "dDwWtnrf"
_MOST_REPEATS = 1000  # of RE2
_COUNT = re.compile(r"\{(?P<least>\d+)(,(?P<most>\d*))?\}")


def check_pattern(regex: str) -> str:
    """A regular expression that every engine reads alike.

    Raises:
        ValueError: that says what stands in the way, and what to write instead.
    """
    if problem := _problem(regex):
        raise ValueError(f"expected a regular expression that every engine reads alike, got {regex!r}: {problem}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(regex)
    except (re.error, FutureWarning, OverflowError) as error:
        raise ValueError(f"expected a regular expression, got {regex!r}: {error}") from None
    return regex


def _problem(regex: str) -> str | None:
    inside, at = False, 0
    while at < len(regex):
        sign, following = regex[at], regex[at + 1 : at + 2]
        if sign == "\\":
            if following.isalnum() and following not in _ESCAPES:
                way_out = (
                    r"write [ \t\n\r\f]" if following == "s" else "leave it out, or use Satisfies(name, condition)"
                )
                return f"\\{following} is not the same everywhere: {way_out}"
            at += 2
            continue
        if inside:
            if sign == "[" or (sign == "&" and following == "&"):
                return f"{sign} inside a class means something else in Java: escape it"
            inside = sign != "]"
        elif sign == "[":
            inside = True
            at += following == "^"
            if regex[at + 1 : at + 2] == "]":
                return "a class without characters: escape the bracket"
        elif found := _outside(regex, at):
            return found
        at += 1
    return None


def _outside(regex: str, at: int) -> str | None:
    sign, following = regex[at], regex[at + 1 : at + 2]
    if sign in "^$":
        return f"the whole text must match: leave {sign} out"
    if sign == "(" and following == "?" and regex[at + 2 : at + 3] != ":":
        return "expected groups such as (…) and (?:…) alone"
    if sign == "+" and at and regex[at - 1] in "*+?}" and not regex[: at - 1].endswith("\\"):
        return "possessive quantifiers are Java's own: leave the + out"
    if sign == "{":
        count = _COUNT.match(regex, at)
        if count is None:
            return "expected a count such as {3}, {1,5} or {2,} after a brace: escape one that is a character"
        if int(count["most"] or count["least"]) > _MOST_REPEATS or int(count["least"]) > _MOST_REPEATS:
            return f"expected at most {_MOST_REPEATS} repetitions"
    return None
