"""What replays have done, as values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay has done.

    Attributes:
        run: its id.
        rows: that were read.
        replayed: reason -> rows that went to bronze and left the quarantine.
        kept: reason -> rows that fail again, and stay.
        warned: rule that only warns -> rows that break it.
        version: of bronze, the last in which rows came; None: none did.
        seconds: how long it took.
        given_up: whether a reset had taken away what it was about.
    """

    run: str
    rows: int
    replayed: Mapping[str, int]
    kept: Mapping[str, int]
    warned: Mapping[str, int]
    version: int | None
    seconds: float
    given_up: bool = False


@dataclass(frozen=True)
class LookupOutcome:
    """What became of the events of a replay.

    Attributes:
        run: its id.
        replayed: that are counted from now on.
        kept: whose key the table does not have yet, either.
        open: whose key it has, but a window of theirs is still open in the stream: they stay as they are.
    """

    run: str
    replayed: int
    kept: int
    open: int
