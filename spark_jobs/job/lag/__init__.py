"""How far a pipeline is behind its source, and what Kafka's own tools are told of it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from spark_jobs.job.lag.base import Lag, SourceLag
from spark_jobs.job.lag.files import FilesLag
from spark_jobs.job.lag.kafka import KafkaLag
from spark_jobs.job.lag.results import ResultsLag
from spark_jobs.job.lag.tables import TablesLag
from spark_jobs.lake import Lake
from spark_jobs.spec import Definition

LAGS: Mapping[str, type[SourceLag[Any]]] = {
    "files": FilesLag,
    "kafka": KafkaLag,
    "results": ResultsLag,
    "table": TablesLag,
    "union": TablesLag,
}
"""Kind of a source -> what measures the lag behind it."""


class LagMeter:
    """Measures how far one pipeline is behind; no oftener than every ten seconds, or a twentieth of its time.

    Args:
        lake: where.
        definition: of the pipeline.
        checkpoint: of its epoch, relative to the lake.
        clock: seconds that only grow.
    """

    def __init__(
        self, lake: Lake, definition: Definition, checkpoint: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = LAGS[definition.source.kind](lake, definition, checkpoint)
        self._clock = clock
        self._due_at = 0.0
        self._known: Lag | None = None

    def measure(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag after the newest batch; None where it is not known.

        Args:
            sources: source -> offset up to which the newest batch has read, as its ledger row has it.
        """
        began = self._clock()
        if began >= self._due_at:
            try:
                self._known = self._source.behind(sources)
            finally:
                # Also where it failed: a source that does not answer is asked no oftener than one that does.
                self._due_at = self._clock() + max(10.0, 20 * (self._clock() - began))
        return self._known

    def close(self) -> None:
        """Ends what it holds open."""
        self._source.close()
