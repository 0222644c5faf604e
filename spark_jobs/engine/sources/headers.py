"""Header lines of CSV files."""

from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.plan.csv_headers import header_line
from spark_jobs.spec import Ingest
from spark_jobs.transforms.csv_columns import NAME, NO_WIDER, Wider, by_header
from spark_jobs.transforms.rows import is_header_line


@dataclass(frozen=True)
class Headers:
    """The headers that the files of a batch may have.

    Attributes:
        expected: the names that the ingest declares.
        delimiter: of its fields.
        wider: files that have more columns, which their own header names.
    """

    expected: tuple[str, ...]
    delimiter: str
    wider: Wider = field(default_factory=lambda: NO_WIDER)

    @classmethod
    def of(cls, definition: Ingest) -> "Headers | None":
        """Those of an ingest; None: its source has none.

        Args:
            definition: of the ingest.
        """
        source = definition.source
        return cls(tuple(definition.columns), source.delimiter) if source.has_header else None

    @property
    def told(self) -> str:
        """The line that is expected."""
        return header_line(self.expected, self.delimiter)

    @property
    def is_header(self) -> Column:
        """Whether a row is the header of its file."""
        found = is_header_line(self.expected, self.delimiter)
        for names, files in by_header(self.wider):
            found = found | (F.col(NAME).isin(files) & is_header_line(names, self.delimiter))
        return found
