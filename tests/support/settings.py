"""Settings of all drivers that tests start."""

import os

_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:InitialRAMPercentage=10 -XX:-UseAdaptiveSizePolicy"
_FORGETFUL = "-Dspark.databricks.delta.delta.log.cacheRetentionMinutes=2"
_NO_CODEGEN = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"


def suit_short_lives() -> None:
    """Lets drivers that live for seconds start cheaply, unless the environment says otherwise.

    Java's second, thorough compiler costs a quarter of their time and pays back nothing. Without it Java keeps 48 MB of
    compiled code, which Spark and Delta fill: it would throw away what it compiles again a moment later. A heap that
    begins with a 64th of the memory is collected as a whole each time that it grows, and its part for what is new would
    shrink to a third, and be collected three times as often. What Delta knows of a table it keeps for an hour, with the
    plans that have read it: the lakes of all tests fill a heap of 2 GB. To compile a plan for batches of a few rows
    takes Spark longer than to interpret it. And each partition costs its tasks, and the files of its state, in every
    batch: tests that are to divide a stream say so (`divided` in tests/spark/conftest.py).
    """
    os.environ.setdefault("TIDEMARK_JAVA_OPTIONS", f"{_JAVA} {_FORGETFUL} {_NO_CODEGEN}")
    os.environ.setdefault("TIDEMARK_SHUFFLE_PARTITIONS", "1")
    # A command that a test runs in its own process would lower the priority of all tests after it.
    os.environ.setdefault("TIDEMARK_BATCH_NICENESS", "0")
