"""What a backfill or a repair has changed, left in a file for whoever started its process."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter


class BatchReport(BaseModel):
    """What one command has changed of one pipeline.

    Attributes:
        pipeline: its name.
        table: its result.
        version: of the table, the last in which rows changed; None: none did.
        watermark: of the stream, up to which results are closed.
        inserted: rows that were missing.
        updated: rows that had other values.
        deleted: rows that must not be there.
        repaired: late events that are counted from now on.
        taken_out: late events that are not counted any more.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    table: str
    version: int | None = None
    watermark: datetime | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    repaired: int = 0
    taken_out: int = 0

    @property
    def rows(self) -> int:
        """How many rows have changed."""
        return self.inserted + self.updated + self.deleted


_LIST = TypeAdapter(tuple[BatchReport, ...])


def write(path: Path, reports: Sequence[BatchReport]) -> None:
    """Leaves reports in a file."""
    path.write_bytes(_LIST.dump_json(tuple(reports)))


def read(path: Path) -> tuple[BatchReport, ...]:
    """The reports in a file; none where there is no file."""
    return _LIST.validate_json(path.read_bytes()) if path.exists() else ()
