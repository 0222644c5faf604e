"""Commits that are made only while something holds: what is found in a table's log when it is opened.

They carry transaction ids of Delta's. One conflicts with every commit that has moved the same id on since the table was
opened; so what was checked then is still true when the commit has its place in the log (docs/decisions/0028).
"""

from collections.abc import Callable

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_jobs.lake.commit_records.conflicts import cannot_commit, is_of_others
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.errors import ConflictError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import open_table

_TRIES = 20

Said = Callable[[DeltaTable], list[Transaction]]
"""The transaction ids that a commit carries, of the table as it is found; or an error, by which it is not made."""

Write = Callable[[DeltaTable, list[Transaction]], None]
"""Makes a commit to a table that carries them."""


def commit(lake: Lake, table: str, said: Said, write: Write, who: str) -> None:
    """Commits what carries transaction ids, and looks at the table anew wherever another commit comes in between.

    Raises:
        ConflictError: if others commit again and again.
        LakeUnavailableError: if the table, or its store, refuses the commit.
    """
    for _ in range(_TRIES):
        opened = open_table(lake, table, to_write=True)
        try:
            write(opened, said(opened))
        except CommitFailedError as error:
            if not is_of_others(error):
                raise cannot_commit(table, error, f"{who}: its rows are as they were.") from error
            continue
        return
    raise ConflictError(
        f"{who}: others commit to {table} at the same moments, {_TRIES} times in a row. Its rows are as they were. "
        "Stop its stream, then run the same command again."
    )


def note(lake: Lake, table: str, said: Said, who: str) -> None:
    """Commits transaction ids and no rows."""

    def write(opened: DeltaTable, ids: list[Transaction]) -> None:
        nothing = opened.to_pyarrow_dataset().schema.empty_table()
        write_deltalake(opened, nothing, mode="append", commit_properties=CommitProperties(app_transactions=ids))
        force_commit(lake, table, opened.version(), data=False)

    commit(lake, table, said, write, who)
