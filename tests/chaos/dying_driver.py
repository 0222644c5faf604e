"""A driver that is killed, with its JVM, when each of its pipelines has computed rows and has not committed them.

It takes the arguments of `tidemark`; DIES_WITH names the pipelines. One that comes so far waits for the others.
"""

import os
import signal
import threading
from typing import Any

from spark_jobs.cli import main
from spark_jobs.engine.writing import BatchWriter
from spark_jobs.lake.accounting.ledger import LedgerEntry

_ALIVE = set(os.environ["DIES_WITH"].split(","))
_commit = BatchWriter.result


def _or_dies(self: BatchWriter, computed: Any, entry: LedgerEntry, content: str | None) -> LedgerEntry:
    if not computed.figures["rows"]:
        return _commit(self, computed, entry, content)
    _ALIVE.discard(self.query.name)
    if not _ALIVE:
        os.killpg(0, signal.SIGKILL)
    threading.Event().wait()
    raise AssertionError


BatchWriter.result = _or_dies  # type: ignore[method-assign]
main()
