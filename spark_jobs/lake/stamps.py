"""What each commit of a batch says of itself, in the commit's `userMetadata`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_jobs.lake.ledger import LedgerRow

Role = Literal["result", "late", "quarantine", "groups", "heartbeat"]


class Stamp(BaseModel):
    """Who wrote a commit, in which batch, and how many rows.

    Attributes:
        tidemark: version of this form.
        pipeline: its name.
        epoch: life of the checkpoint.
        batch_id: number of the batch within the epoch.
        role: which of the batch's tables this is.
        rows: rows that the plan of the batch holds for this table.
        ledger: what became of the batch's events; in the commit of the result table only.
        next_seq: bronze only: the `_ingest_seq` with which the next batch begins.
    """

    model_config = ConfigDict(frozen=True)

    tidemark: Literal[1] = 1
    pipeline: str
    epoch: int
    batch_id: int
    role: Role
    rows: int
    ledger: LedgerRow | None = None
    next_seq: int | None = None

    def encode(self) -> str:
        """As the commit's `userMetadata`."""
        return self.model_dump_json(exclude_none=True)


def decode(commit: dict[str, Any]) -> Stamp | None:
    """The stamp of a commit; None where somebody else made it."""
    text = commit.get("userMetadata")
    if not isinstance(text, str) or '"tidemark"' not in text:
        return None
    try:
        return Stamp.model_validate_json(text)
    except ValidationError:
        return None
