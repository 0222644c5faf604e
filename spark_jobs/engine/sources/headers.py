"""Header lines of CSV files."""

from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.spec import Ingest
from spark_jobs.transforms.csv_columns import NAME, NO_WIDER, Wider
from spark_jobs.transforms.rows import RAW, expected_header, header_of, is_header_line


@dataclass(frozen=True)
class Headers:
    """The headers that the files of a batch may have.

    Attributes:
        expected: the one that the ingest declares.
        delimiter: of its fields.
        wider: files that have more columns, which their own header names.
    """

    expected: str
    delimiter: str
    wider: Wider = field(default_factory=lambda: NO_WIDER)

    @classmethod
    def of(cls, definition: Ingest) -> "Headers | None":
        """Those of an ingest; None: its source has none.

        Args:
            definition: of the ingest.
        """
        expected = expected_header(definition)
        return None if expected is None else cls(expected, definition.source.delimiter)

    @property
    def line(self) -> Column:
        """A row's text as headers are compared."""
        return header_of(F.col(RAW))

    @property
    def is_header(self) -> Column:
        """Whether a row is the header of its file."""
        own = is_header_line(self.expected)
        if not self.wider:
            return own
        lines = F.create_map(
            *(F.lit(part) for file, names in self.wider.items() for part in (file, self.delimiter.join(names)))
        )
        return own | F.coalesce(self.line == lines[F.col(NAME)], F.lit(False))
