"""Why a commit failed: somebody else has committed meanwhile, or it cannot be made at all.

`deltalake` raises one error for both, and only its text tells them apart. This is the one place that reads it.
"""

import re

from deltalake.exceptions import CommitFailedError

from spark_jobs.lake.errors import LakeUnavailableError, first_line

SAME_TRANSACTION = "Concurrent transaction"
"""What `deltalake` says where another writer commits the same transaction id."""

# What a table refuses, and what its store does, is told in other words.
_OTHERS = re.compile(
    r"^Failed to commit transaction|concurrent transaction|already exists|Tried committing existing", re.IGNORECASE
)


def is_of_others(error: BaseException) -> bool:
    """Whether a commit failed because of commits of others, so that it may succeed once it is made anew."""
    return isinstance(error, CommitFailedError) and _OTHERS.search(str(error)) is not None


def cannot_commit(table: str, error: BaseException, undone: str) -> LakeUnavailableError:
    """The error for a commit that failed because of nobody else.

    Args:
        table: such as `gold.top_products`.
        error: of `deltalake`.
        undone: what was and what was not written; a sentence.
    """
    return LakeUnavailableError(
        f"table {table}: the commit was refused: {first_line(error)}. {undone} Once that is put right, run the same "
        "command again."
    )
