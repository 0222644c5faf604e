"""Why a driver ended: its cause in a sentence, from what is left of it. No clock, no process, no lake."""

import signal
from collections.abc import Sequence

from spark_jobs.control.supervision.pulse import DRAINED

# What Java says before it goes; whatever follows in the log are consequences.
_LAST_WORDS_OF_JAVA = (
    "OutOfMemoryError",
    "A fatal error has been detected by the Java Runtime Environment",
    "There is insufficient memory for the Java Runtime",
)
# What a driver says whose Java has gone.
_ENDS_OF_JAVA = ("SessionLostError", "SessionStartError")
_LONGEST = 400


def cause_of_end(*, killed: str | None, ending: str | None, exit_code: int | None, lines: Sequence[str]) -> str:
    """What ended a driver, from the surest witness to the weakest.

    Args:
        killed: why its supervisor ended it; None: it did not.
        ending: what its last sign of life gives as the reason.
        exit_code: negative for a signal; None: nobody saw it.
        lines: of its log, the last ones.
    """
    if killed is not None:
        return f"its supervisor ended it: {killed}"
    java = next((line for line in lines if any(mark in line for mark in _LAST_WORDS_OF_JAVA)), None)
    if java is not None and (ending is None or ending.startswith(_ENDS_OF_JAVA)):
        return _cut(java)
    if ending is not None and ending != DRAINED:
        return _cut(ending)
    if exit_code is not None and exit_code < 0:
        return how_it_ended(exit_code)
    errors = [line for line in lines if line.startswith("error:")]
    if errors:
        return _cut(errors[-1].removeprefix("error:"))
    if exit_code is None:
        return "exit code not known and no output: its host may have failed, or its process was killed"
    return f"it said last: {_cut(lines[-1])}" if lines else "it wrote no output"


def how_it_ended(exit_code: int) -> str:
    """An exit code in words, negative for a signal."""
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    why = ": by somebody, or by the system because memory ran out" if name == "SIGKILL" else ""
    return f"it was ended by {name}{why}"


def _cut(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 2]} …"
