"""Which data files say what the commits of a table have changed of its rows.

A commit that only adds files adds their rows. One that takes files away has written anew what is left of them: what it
has changed is what the rows of the files that came, and of those that went, do not have in common. Commits that change
no row, such as a compaction, say so, and are passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from spark_jobs.lake.accounting.ledger_table import Actions, takes_rows_away
from spark_jobs.lake.commit_records.history import commits_between
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import data_files
from spark_jobs.lake.tables.opening import open_table


class UnreadableChangesError(TidemarkError):
    """What a table has changed cannot be told from its log any more."""


@dataclass(frozen=True)
class FileRows:
    """The rows of a data file, as a version of its table has them come or go.

    Attributes:
        version: of the table.
        path: of the file, relative to the table.
        weight: 1: they come; -1: they go.
        revises: whether the version takes rows away, too: then only what its files do not have in common has changed.
    """

    version: int
    path: str
    weight: int
    revises: bool


def file_rows(lake: Lake, table: str, first: int, last: int) -> list[FileRows]:
    """The files of the versions of a range, in their order.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        first: version.
        last: version, itself included.

    Raises:
        UnreadableChangesError: if the log does not have one of the versions, or a file has rows that are deleted
            without it.
    """
    found: list[FileRows] = []
    upto = first - 1
    for version, actions in commits_between(lake, table, first, last):
        if version != upto + 1:
            break
        found += _of(table, version, actions)
        upto = version
    if upto < last:
        raise UnreadableChangesError(
            f"table {table}: versions {first:,} to {last:,} are to be read, and its log has no version {upto + 1:,} "
            "any more: what was changed there is not known"
        )
    return found


def all_rows(lake: Lake, table: str, version: int) -> list[FileRows]:
    """The files that a table has at a version, as if all their rows came with it."""
    opened = open_table(lake, table, version=version)
    return [FileRows(version, unquote(path), 1, revises=False) for path in reversed(data_files(opened))]


def _of(table: str, version: int, actions: Actions) -> Iterator[FileRows]:
    revises = takes_rows_away(actions)
    for action in actions:
        for name, weight in (("add", 1), ("remove", -1)):
            file = action.get(name)
            if file is None or not file.get("dataChange", True):
                continue
            if file.get("deletionVector"):
                raise UnreadableChangesError(
                    f"table {table}: version {version:,} deletes rows by a deletion vector, which is not read here. "
                    "Turn delta.enableDeletionVectors off for the table"
                )
            yield FileRows(version, unquote(file["path"]), weight, revises)
