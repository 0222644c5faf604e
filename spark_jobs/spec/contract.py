"""What becomes of an event where a source has other columns than its ingest declares."""

from typing import Any, Literal

from spark_jobs.spec.base import Spec

UNKNOWN_FIELDS = "_unknown_fields"
"""The column of bronze that keeps what no column takes: a map of field and text."""


class Contract(Spec):
    """What a source has promised, and what happens where it does otherwise.

    Attributes:
        new: of a field of JSON, or a column of a CSV file's header, that no column takes: `notice`: it is dropped,
            counted, and alerted from a share of the events on; `keep`: it is also kept, in bronze's `_unknown_fields`.
        missing: where a JSON object lacks a column: `null`: it is null; `quarantine`: the row is set aside, reason
            `missing column`; `fail`: the batch is not written, and the pipeline stops.
        repeated: where a JSON object has a key twice: `quarantine`: the row is set aside, reason `unparseable`; `last`:
            the last value is taken.
        retyped: where a value does not have its column's type: `quarantine`: the row is set aside, reason
            `unparseable`; `fail`: the batch is not written, and the pipeline stops.
    """

    new: Literal["notice", "keep"] = "notice"
    missing: Literal["null", "quarantine", "fail"] = "null"
    retyped: Literal["quarantine", "fail"] = "quarantine"
    repeated: Literal["quarantine", "last"] = "quarantine"

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)
