"""What a source has and a pipeline has not read, and who measures it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from spark_jobs.lake import Lake
from spark_jobs.spec import Definition

D = TypeVar("D", bound=Definition)


@dataclass(frozen=True)
class Lag:
    """What a source has and a pipeline has not read.

    Attributes:
        rows: events of a table, messages of Kafka, or files.
        oldest: when the oldest of them came; None where nothing is behind, or nobody knows.
    """

    rows: int
    oldest: datetime | None = None


class SourceLag(ABC, Generic[D]):
    """Measures the lag behind one kind of source.

    Args:
        lake: where.
        definition: of the pipeline.
        checkpoint: of its epoch, relative to the lake.
    """

    def __init__(self, lake: Lake, definition: D, checkpoint: str) -> None:
        self._lake = lake
        self._definition = definition
        self._checkpoint = checkpoint

    @abstractmethod
    def behind(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag; None where it is not known.

        Args:
            sources: source -> offset up to which the newest batch has read, as its ledger row has it.
        """

    def close(self) -> None:
        """Ends what it holds open."""
