"""What each commit of a batch says of itself, in the commit's `userMetadata`."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.store.formats import FormatError, PersistedValue
from spark_jobs.plan import tables

Role = tables.Role | Literal["heartbeat"]

SIGN = "tidemark"
"""What tells a commit of Tidemark from those of others."""


class Stamp(PersistedValue):
    """Who wrote a commit, in which batch, and how many rows.

    Attributes:
        tidemark: which tells it from what others write there.
        pipeline: its name.
        epoch: life of the checkpoint.
        batch_id: number of the batch within the epoch.
        role: which of the batch's tables this is.
        rows: rows that the plan of the batch holds for this table.
        query_id: of Spark's checkpoint.
        clock_ms: the batch's clock, milliseconds since 1970, which Spark notes when it plans the batch.
        offsets: digest of the offsets up to which the batch reads, see `digest`.
        content: digest of the rows, in any order: what a replay must give again.
        reasons: quarantine only: rows by reason.
        lookups: table -> the version in which the batch looked columns up.
        lookup_ids: table -> the id of the Delta table that this version is of; a table that is made anew begins at
            version 0 again. Of stamps from before there were any: that of the table as it is.
        ledger: what became of the batch's events; in the commit of the result table only.
        next_seq: bronze only: the `_ingest_seq` with which the next batch begins.
        txn: bronze only: the number under which the table remembers the commit; None: that of the batch.
    """

    tidemark: Literal["stamp"] = "stamp"
    pipeline: str
    epoch: int
    batch_id: int
    role: Role
    rows: int
    query_id: str | None = None
    clock_ms: int | None = None
    offsets: str | None = None
    content: str | None = None
    reasons: Mapping[str, int] = {}
    lookups: Mapping[str, int] = {}
    lookup_ids: Mapping[str, str] = {}
    ledger: LedgerEntry | None = None
    next_seq: int | None = None
    txn: int | None = None

    def encode(self) -> str:
        """As the commit's `userMetadata`."""
        return self.model_dump_json(exclude_none=True)

    def differs(self, other: "Stamp") -> str | None:
        """In what the plan of a batch differs from another batch of the same number; None: they are one batch.

        A checkpoint that was lost, or was put back from an older copy, plans other batches under numbers that the
        tables know already.
        """
        if self.query_id != other.query_id:
            return f"checkpoint {other.query_id} instead of {self.query_id}"
        if self.clock_ms != other.clock_ms:
            return f"planned at {_clock(other.clock_ms)} instead of {_clock(self.clock_ms)}"
        return "other offsets" if self.offsets != other.offsets else None

    def has_same_content(self, other: "Stamp") -> bool:
        """Whether the digests of the rows are the same; of two forms none says anything of the other."""
        if self.content is None or other.content is None:
            return self.content == other.content
        forms = [each.content.rpartition(":")[0] for each in (self, other) if each.content is not None]
        return forms[0] != forms[1] or self.content == other.content


def digest(offsets: Mapping[str, str]) -> str:
    """A short text that tells offsets from others; the address of the lake is not part of it, so that it may move."""
    plain = sorted(
        (source.rstrip("]/").rpartition("/")[2], json.loads(offset) if offset else None)
        for source, offset in offsets.items()
    )
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _clock(ms: int | None) -> str:
    return "an unknown time" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"


def decode(commit: dict[str, Any]) -> Stamp | None:
    """The stamp of a commit of a batch; None where somebody else made it, or it is a revision or of a replay.

    Raises:
        FormatError: if Tidemark made it, in a form that this version cannot read: it must not be taken for another's.
    """
    text = commit.get("userMetadata")
    if not isinstance(text, str) or f'"{SIGN}"' not in text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get(SIGN) in (None, "revision", "replay"):
        return None
    try:
        return Stamp.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        raise FormatError(
            f"a commit of Tidemark cannot be read: {'.'.join(map(str, problem['loc']))}: {problem['msg']}, in "
            f"{text[:200]!r}. Another version of Tidemark wrote it, or it was changed. Nothing was changed now."
        ) from error
