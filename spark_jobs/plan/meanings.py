"""What the columns of tables mean: in the words of their definition, and for Tidemark's own columns in ours."""

from collections.abc import Mapping

from spark_jobs.plan.columns import (
    EVENT_ID,
    EVENTS,
    FINAL_AFTER,
    HEARTBEAT,
    INGEST_SEQ,
    INGEST_TIME,
    PLACE,
    REVISED_AT,
    REVISION,
    SIDE,
    SOURCE_TABLE,
    WINDOW_END,
    WINDOW_START,
)
from spark_jobs.plan.tables import Role
from spark_jobs.spec import Definition

_BRONZE: Mapping[str, str] = {
    EVENT_ID: "Identifies the event: the column that its definition names, or a hash of the event's place.",
    INGEST_SEQ: "Number in the order of arrival, unique in the table.",
    INGEST_TIME: "When the batch began that read the event, UTC.",
    PLACE: "Where the event stood: file or topic, partition, position.",
    HEARTBEAT: "True for rows that only move the watermark; they are no events.",
}

_RESULTS: Mapping[str, str] = {
    WINDOW_START: "First instant of the window, UTC.",
    WINDOW_END: "First instant after the window, UTC.",
    "rank": "Place in the window's ranking; 1 is best.",
    EVENTS: "How many events the row stands for.",
    FINAL_AFTER: "The row is final once the published watermark has reached this time, UTC.",
    REVISION: "How often the row was written; 1 at first.",
    REVISED_AT: "When the row was written last, UTC.",
    SOURCE_TABLE: "Table that the event was read from; with `_ingest_seq` it tells events apart.",
    SIDE: "Which sides of the join the row has: both, left or right.",
}

_LATE: Mapping[str, str] = {
    "missed_windows": "Windows for which the event came too late.",
    "partly_late": "Whether the event still counts in other windows.",
    "late_by_ms": "How far behind the watermark the event was, milliseconds.",
    "watermark": "The watermark by which the event was late, UTC.",
    "engine_watermark": "That of Spark, without the grace of the definition, UTC.",
    "settled_version": "Version of the result in which a repair or a backfill has counted the event; null: not yet.",
    "settled_at": "When it did, UTC.",
}

_QUARANTINE: Mapping[str, str] = {
    "reason": "Why the row was set aside.",
    "detail": "The values that broke the rule.",
    "raw": "The text of the row, as it arrived.",
    "_epoch": "Epoch of the checkpoint whose batch set it aside.",
    "_batch_id": "The batch that set it aside.",
    "replayed_batch": "The batch as which a replay has looked the event up again, with success; null: not yet.",
    "replayed_at": "When it did, UTC.",
    "changes_from": "Where the first of the windows starts that the event belongs to, UTC.",
    "changes_upto": "Where the last of them starts, UTC.",
    "settled_version": "Version of the result from which on it counts the event that was replayed; null: not yet.",
    "settled_at": "When it was written, UTC.",
}

_OF_ROLE: Mapping[Role, Mapping[str, str]] = {
    "result": {},
    "groups": {},
    "late": _LATE,
    "quarantine": _QUARANTINE,
}


def column_comments(definition: Definition, role: Role) -> Mapping[str, str]:
    """Column -> its meaning, for those of which something is known.

    Args:
        definition: that writes the table.
        role: of the table.
    """
    return {**_BRONZE, **_RESULTS, **_OF_ROLE[role], **definition.column_descriptions}
