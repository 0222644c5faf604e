"""Settings of all drivers that tests start."""

import os


def suit_short_lives() -> None:
    """Lets drivers that live for seconds start cheaply, unless the environment says otherwise.

    Java's second, thorough compiler costs a quarter of their time and pays back nothing. Without it Java keeps 48 MB of
    compiled code, which Spark and Delta fill: it would throw away what it compiles again a moment later. And each
    partition of a state costs its files in every batch, of which two are enough to divide a stream.
    """
    os.environ.setdefault("TIDEMARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
    os.environ.setdefault("TIDEMARK_SHUFFLE_PARTITIONS", "2")
    # A command that a test runs in its own process would lower the priority of all tests after it.
    os.environ.setdefault("TIDEMARK_BATCH_NICENESS", "0")
