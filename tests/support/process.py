"""A service as a child process: started, awaited by asking it, stopped by its pid."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


class ServiceError(Exception):
    """A service did not start; the message ends with what it last said."""


def leave_out(reason: str) -> NoReturn:
    """Skip a test whose service is not there; in CI, where all of them are, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    within_s: float = 300.0,
) -> Iterator[None]:
    """Run a service for the length of a ``with`` block.

    Args:
        name: Name for messages.
        command: Program and arguments.
        log: File that takes the service's output.
        is_ready: Asks the service; must not block for long.
        environment: The process's whole environment; ours if absent.
        within_s: How long to wait for readiness.

    Raises:
        ServiceError: If the process ends or is not ready in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        deadline = time.monotonic() + within_s
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                got = f"exit code {process.returncode}" if process.returncode is not None else "no answer"
                said = log.read_text(errors="replace")[-2000:]
                raise ServiceError(f"{name}: expected it to be ready in {within_s} s, got {got}.\n{said}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
