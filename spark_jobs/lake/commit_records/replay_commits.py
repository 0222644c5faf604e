"""What a replay of quarantined rows says of itself in its commits, and the numbers that a bronze table hands out."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.commit_records.stamps import SIGN
from spark_jobs.lake.store.formats import FormatError, PersistedValue


class ReplayCommit(PersistedValue):
    """A commit of a replay: to bronze it appends rows of the quarantine, from the quarantine it takes them away.

    Attributes:
        tidemark: which tells it from the commits of a stream and of other programs.
        pipeline: the ingest.
        epoch: of its checkpoint.
        run: the replay's id; its commits to both tables have one.
        number: of the commit to the table.
        role: which of the ingest's tables it wrote.
        rows: that it has appended, or taken away.
        first_index: bronze only: the place, among the selected rows, of the row that `first_seq` belongs to.
        writer: bronze only: the stream's transaction id, which it has moved on too, so that a batch which had taken the
            same numbers cannot be committed.
        txn: bronze only: to which number of it.
        first_seq: bronze only: `_ingest_seq` of the first selected row, whether it has passed or not.
        next_seq: bronze only: the `_ingest_seq` with which the next batch begins.
        released: quarantine only: epoch -> rows of it that were taken away.
        ledger: what was read, and what became of it.
    """

    tidemark: Literal["replay"] = "replay"
    pipeline: str
    epoch: int
    run: str
    number: int = 0
    role: Literal["result", "quarantine"]
    rows: int
    first_index: int = 0
    writer: str | None = None
    txn: int | None = None
    first_seq: int | None = None
    next_seq: int | None = None
    released: Mapping[int, int] = {}
    ledger: LedgerEntry | None = None

    def encode(self) -> str:
        """As the commit's `userMetadata`."""
        return self.model_dump_json(exclude_none=True)


def decode_replay(commit: Mapping[str, Any]) -> ReplayCommit | None:
    """The commit of a replay; None where it is another's.

    Raises:
        FormatError: if it is one, in a form that this version cannot read.
    """
    text = commit.get("userMetadata")
    if not isinstance(text, str) or '"replay"' not in text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get(SIGN) != "replay":
        return None
    try:
        return ReplayCommit.model_validate(value)
    except ValidationError as error:
        raise FormatError(f"a commit of a replay cannot be read: {error}. Nothing was changed now.") from error
