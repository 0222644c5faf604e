"""What is known of rows that were set aside by the words that stand beside them."""

import hashlib
from collections.abc import Mapping, Sequence

from spark_jobs.plan.csv_headers import fields_of, header_line, names_in

NO_SUCH_KEY = "no such key"
"""Of an event whose key the table of an `Enrich` does not have."""

HEADER = "header"
UNREADABLE = "unreadable file"
NOT_UTF8 = "not UTF-8"
REPEATED_HEADER = "the header again"
INSIDE_QUOTES = "no CSV row: it lies inside quotes that a line before it has opened"
SKIPPED = "skipped"
"""Of a row whose whole batch was set aside by a decision."""

_REPLACED = "\ufffd"
"""What stands in a text for bytes that are none."""

NOT_AGAIN: Mapping[str, str] = {
    "bytes": "its bytes are not text; they are in `detail`, in base64",
    "file": "it stands for a whole file, whose rows were not read; put the file, fixed, into the folder under another "
    "name",
    "header": "it is a header, which is no event",
    "quotes": "it is a part of a value that goes over several lines",
    "skipped": "it was skipped with its batch, and lines of CSV were not told from parts of values there",
    "parquet": "of a row of a Parquet file or of a result the text is kept, without the types; put a fixed file into "
    "the folder, or the result right",
    "epoch": "it is of an epoch before a reset, after which the source was read again from its start; what it "
    "did not have any more then: --earlier-epochs",
}
"""Why a row cannot be read again from what the quarantine has of it."""


def header_told(found: str, delimiter: str, *, quoted: bool) -> str:
    """What stands in `detail` of another header than the one that is expected.

    A file without a header has an event there. Where values of it must not be quoted, a digest tells it from others.

    Args:
        found: the first line of the file.
        delimiter: of its fields.
        quoted: whether it may be quoted.
    """
    names = names_in(found, delimiter)
    line = header_line(names, delimiter) if names else found
    if quoted:
        return line
    digest = hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{len(fields_of(found, delimiter))} fields (line {digest})"


def not_again_sql(epochs: Sequence[int], *, of_parquet: bool, of_csv: bool) -> str:
    """Which of `NOT_AGAIN` is true of a row, else null; SQL that DuckDB and Spark take alike.

    Args:
        epochs: of the ingest's checkpoint; empty: rows of earlier ones are read again, too.
        of_parquet: whether it reads Parquet files.
        of_csv: whether it reads CSV files.
    """
    whens = [
        (f"reason = '{UNREADABLE}'", "file"),
        (f"reason = '{NOT_UTF8}' OR contains(raw, '{_REPLACED}')", "bytes"),
        (f"detail = '{REPEATED_HEADER}'", "header"),
        (f"detail = '{INSIDE_QUOTES}'", "quotes"),
        *([(f"reason = '{SKIPPED}'", "skipped")] if of_csv else []),
        *([("true", "parquet")] if of_parquet else []),
        *([(f"_epoch NOT IN ({', '.join(map(str, epochs))})", "epoch")] if epochs else []),
    ]
    return "CASE " + " ".join(f"WHEN {condition} THEN '{why}'" for condition, why in whens) + " END"
