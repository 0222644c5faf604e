"""Ports of the loopback address."""

import errno
import random
import socket


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of the loopback address.

    Raises:
        OSError: if nobody may, or can, listen there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def free_port() -> int:
    """A port of the loopback address on which nothing listens.

    It is none of those that systems give to connections (from 32768 on): one of these may be taken at any moment, and
    a service needs seconds until it listens.
    """
    numbers = random.SystemRandom()
    return next(port for port in iter(lambda: numbers.randrange(10_000, 30_000), None) if is_free(port))
