"""What both ways to merge rows into a table have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltalake.exceptions import CommitFailedError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from spark_jobs.lake.commit_records.conflicts import SAME_TRANSACTION, is_of_others
from spark_jobs.spec.names import Quoting

FEW_WINDOWS = 1_000
"""So many windows are named one by one where a table is searched for them, more by the first and the last of them."""

TRIES = 8
"""So often a commit is tried where others change the same files."""

# The conditions of Delta's errors, which their texts begin with; the names of the classes are not in all of them.
_CONFLICTS = ("DELTA_CONCURRENT_APPEND", "DELTA_CONCURRENT_DELETE_READ", "DELTA_CONCURRENT_DELETE_DELETE")


@dataclass(frozen=True)
class CommitId:
    """Under which name a table remembers a commit, so that it is made once.

    Attributes:
        writer: Delta's transaction id of the application: such as one table of one epoch of a pipeline.
        number: grows with each commit of the writer.
    """

    writer: str
    number: int


def touched(ends_us: Sequence[int], instant: str) -> str:
    """A condition by which a merge leaves out the files of other windows.

    Args:
        ends_us: ends of the windows, in microseconds since 1970, ascending.
        instant: the function that makes a time of them.
    """
    if len(ends_us) > FEW_WINDOWS:
        return f"t.window_end BETWEEN {instant}({ends_us[0]}) AND {instant}({ends_us[-1]})"
    return f"t.window_end IN ({', '.join(f'{instant}({end})' for end in ends_us)})"


def within(between: tuple[str, int, int] | None, instant: str, quoted: Quoting) -> str:
    """The same for rows that lie between two instants; `quoted` is the engine's."""
    if between is None:
        return "true"
    column, first, last = between
    return f"t.{quoted(column)} BETWEEN {instant}({first}) AND {instant}({last})"


def measures(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """What a revision is made for, if it changes."""
    return [name for name in columns if name not in (*keys, "revised_at", "revision")]


def is_same_transaction(error: BaseException) -> bool:
    """Whether another writer has committed the same transaction id since the table was opened."""
    return any(name in str(error) for name in (SAME_TRANSACTION, "ConcurrentTransaction", "CONCURRENT_TRANSACTION"))


def is_conflict(error: BaseException) -> bool:
    """Whether another writer changed the same files; a driver that commits the same batch is another matter."""
    if isinstance(error, CommitFailedError):
        return is_of_others(error) and not is_same_transaction(error)
    return any(name in str(error) for name in _CONFLICTS)


@retry(
    retry=retry_if_exception(is_conflict),
    stop=stop_after_attempt(TRIES),
    wait=wait_random_exponential(multiplier=0.2, max=5),
    reraise=True,
)
def retrying(execute: Callable[[], None]) -> None:
    """Other writers may change the same files; the idempotent id makes another try safe."""
    execute()
