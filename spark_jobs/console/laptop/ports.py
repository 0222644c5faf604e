"""Ports of the loopback address."""

import random
import socket
from contextlib import suppress


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def free_port() -> int:
    """A port of the loopback address on which nothing listens.

    It is none of those that systems give to connections (from 32768 on): one of these may be taken at any moment, and
    a service needs seconds until it listens.
    """
    numbers = random.SystemRandom()
    return next(port for port in iter(lambda: numbers.randrange(10_000, 30_000), None) if is_free(port))
