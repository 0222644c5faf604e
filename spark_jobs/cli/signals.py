"""Ctrl-C and SIGTERM: the first asks, the second insists."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the run after the running batches; a second Ctrl-C ends it at once."""
    stop = threading.Event()

    def on_signal(signum: int, frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def two_signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first Ctrl-C or SIGTERM sets the one, the second the other."""
    first, second = threading.Event(), threading.Event()

    def on_signal(signum: int, frame: object) -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    yield first, second
