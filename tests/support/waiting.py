"""Waits for what comes by itself: as long as a starved machine may need, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 120.0


def await_that(holds: Callable[[], bool], what: str) -> None:
    """Asks ten times a second until it is true.

    Args:
        holds: is asked.
        what: is awaited, for the message.

    Raises:
        AssertionError: if it has not come in `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what} has not come in {PATIENCE_S:.0f} s"
        time.sleep(0.1)
