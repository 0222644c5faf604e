"""A table that one process opens for each of its batches.

To open it anew is to read the newest checkpoint of its log and each commit since, some twenty files a batch.
"""

from dataclasses import dataclass

import obstore
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError

from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import checkpoint_interval, open_table
from spark_jobs.lake.tables.protocol import refuse_to_read, refuse_to_write

_FEW_FILES = 10_000
"""A table of more is opened anew each time: each of 100,000 files would keep half a kilobyte in memory."""


@dataclass(frozen=True)
class _Held:
    """What is known of a table.

    Attributes:
        opened: the table.
        until: from this version on it is to be opened anew.
        version: the newest that is known.
        tag: of the file of that commit.
    """

    opened: DeltaTable
    until: int
    version: int
    tag: str


class HeldTable:
    """A table of which only what is new is read when it is asked for again.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        to_write: as in `open_table`.
    """

    def __init__(self, lake: Lake, table: str, *, to_write: bool = False) -> None:
        self._lake, self._table, self._to_write = lake, table, to_write
        self._held: _Held | None = None
        # To count the files takes a while as well.
        self._too_large_until = 0

    def newest(self) -> DeltaTable:
        """The table at its newest version.

        Raises:
            MissingTableError, UnsupportedTableError, LakeUnavailableError: as `open_table`.
        """
        if (known := self._known()) is not None:
            return known
        opened = open_table(self._lake, self._table, to_write=self._to_write)
        version = opened.version()
        if version >= self._too_large_until:
            until = version + checkpoint_interval(opened)
            if opened.get_add_actions().num_rows > _FEW_FILES:
                self._too_large_until = until
            else:
                self._hold(opened, until)
        return opened

    def _hold(self, opened: DeltaTable, until: int) -> None:
        version = opened.version()
        tag = self._tag(version)
        self._held = _Held(opened, until, version, tag) if tag is not None else None

    def forget(self) -> None:
        """Opens the table anew the next time, as after an error."""
        self._held = None

    def _known(self) -> DeltaTable | None:
        """The table that is held, with what is new; None: it has to be opened."""
        held, self._held = self._held, None
        if held is None:
            return None
        # Another table may lie there by now, made by another program under the same name, or an older copy of it that
        # has gone on: their commits are other files.
        if self._tag(held.version) != held.tag:
            return None
        opened = held.opened
        try:
            opened.update_incremental()
        except (DeltaError, OSError):
            return None  # to open it tells what is wrong
        # What is held of the log grows with each commit.
        if opened.version() >= held.until:
            return None
        (refuse_to_write if self._to_write else refuse_to_read)(self._table, opened)
        self._hold(opened, held.until)
        return opened

    def _tag(self, version: int) -> str | None:
        """By which the store tells the file of a commit from another of its name; None: there is none, or no tag."""
        path = f"{self._table.replace('.', '/', 1)}/_delta_log/{version:020d}.json"
        try:
            return obstore.head(self._lake.store, path)["e_tag"]
        except (BaseError, OSError):
            return None
