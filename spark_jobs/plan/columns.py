"""The columns that Tidemark adds to those of its users, once."""

from collections.abc import Iterable

from spark_jobs.spec import METADATA_COLUMNS

EVENT_ID, INGEST_SEQ, INGEST_TIME, PLACE, HEARTBEAT = METADATA_COLUMNS
"""Of each bronze row: its event's id, its number, when it arrived, where it stood, whether it is no event."""

EVENT_COLUMNS = (EVENT_ID, INGEST_SEQ, INGEST_TIME)
"""What an event keeps of bronze's own columns, whatever the source selects."""

SOURCE_TABLE = "_source_table"
"""Of each event that a pipeline with several source tables keeps: the one that it was read from, such as
`bronze.sales`. With its number there it is the event's identity (`plan/identity.py`)."""

SIDE = "_side"
"""Of each row of a join, and of each late event of one: `both`, `left` or `right`."""

OTHER = "_other"
"""Before the names of the other side's own columns."""

EVENTS = "__events"
"""Of each group: how many events it stands for."""

ROW = "__row"
"""Of each row that a processor gives: its number among those of its key at one instant."""

WINDOW_START, WINDOW_END = "window_start", "window_end"

WINDOW = "__window"
"""Of an event: the window that it is put into, a start and an end, where Spark does not compute it while it groups."""

WINDOWS_IN_STATE = ("window", "session_window", WINDOW)
"""What Spark's state calls the window of a group: the first two are Spark's own names."""

FINAL_AFTER, REVISION, REVISED_AT = "final_after", "revision", "revised_at"
"""Of each result row: the published watermark from which on it is final, how often it was written, when it was last."""

JUDGED = "__judged"
"""Of an event of which a stream has counted only some windows: the watermark by which it was late for the others."""

COUNTED_UPTO = "__counted_upto"
"""Of an event that has `JUDGED`: windows that end up to it have counted it all the same; null: none."""

VERSION_RANGE = "__version_range"
"""Of an event that is looked up again: the versions that its batch has taken; of a row there: those that have it."""

REPLAYED = "__replayed"
"""Of an event that is looked up again: whether a person had it looked up anew, after its batch."""

LOOKED_UP = "__looked_up"
"""Of an event beside a result: the number of the batch with whose versions it is looked up."""

IN_RESULT = "__in_result"
"""Of an event that is counted again: whether the result has it already."""

BATCH, CLOSED, SESSION = "__batch", "__closed_us", "__session"
"""Of an event that is counted again as the stream did: its batch, the watermark up to which the stream had closed
windows before it, and the session that it came into."""

TIME, SEQ, SOURCE, KEY, FATE, GAP = "__time", "__seq", "__table", "__key", "__fate", "__gap_us"
"""The narrow row of an event: its time, its number in the source table, which table that is, a hash of its key, what
became of it before any step that remembers events (null: it went on), how long a session it keeps open."""

LATE_US = "__watermark_us"
"""Of each row of a batch: the watermark by which its events are late, in microseconds since 1970."""

_GIVEN = frozenset({SOURCE_TABLE, SIDE, "_epoch", "_batch_id"})


def given_to_events(names: Iterable[str]) -> list[str]:
    """Those of a source table's columns that Tidemark gives events itself while they go through a pipeline.

    Names in definitions cannot be such (`spec.expressions.check_column_names`); a bronze table that another program
    has made may have them.
    """
    folded = ((name, name.casefold()) for name in names)
    return sorted(name for name, low in folded if low in _GIVEN or low.startswith(("__", f"{OTHER}_")))
