"""What the one counting pass over a batch of an ingest finds: rows by file and reason, and digests of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Row

from spark_jobs.plan.quarantine import HEADER, UNREADABLE
from spark_jobs.transforms.content import digest
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.quotes import Block
from spark_jobs.transforms.rows import REASON

BLOCK = "__block"
"""The column of a batch that says in which piece of its file a row stands."""


@dataclass
class Census:
    """What the one counting pass over a batch found.

    Attributes:
        groups: the counted groups: partition, file, piece of it, reason, whether it is a header line.
        has_header: whether files have one.
        bad_headers: file with another header -> that header; its rows are set aside.
        headers: file -> place of its header, which is no row.
        reasons: reason -> rows that are set aside.
        contents: reason (None: none, for bronze) -> the two halves of the digest of its rows.
        good: rows for bronze.
        good_groups: the groups that hold them.
    """

    groups: Sequence[Row]
    has_header: bool
    bad_headers: dict[str, str] = field(default_factory=dict)
    headers: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    contents: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    good: int = 0
    good_groups: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.has_header:
            firsts = first_rows(self.groups)
            self.bad_headers = {name: group["first_line"] for name, group in firsts.items() if not group["is_header"]}
            # The first line of a file is its header; the same line again is a row that is none.
            self.headers = {name: int(group["first"]) for name, group in firsts.items() if group["is_header"]}
        for group in self.groups:
            reason, rows = group[REASON], group["rows"]
            if group[NAME] in self.bad_headers:
                reason = HEADER
            elif self.has_header and group["is_header"]:
                reason, rows = HEADER, rows - (group["first"] == self.headers.get(group[NAME]))
            if not rows:
                continue
            if reason is None:
                self.good += rows
                self.good_groups.append(group)
            else:
                self.reasons[reason] = self.reasons.get(reason, 0) + rows
            xor, total = self.contents.get(reason, (0, 0))
            self.contents[reason] = xor ^ group["content_xor"], total + group["content_sum"]

    @property
    def quarantined(self) -> int:
        """Rows for the quarantine, without files that cannot be read."""
        return sum(self.reasons.values())

    @property
    def good_content(self) -> str | None:
        """A digest of the rows for bronze."""
        return digest((xor, total) for reason, (xor, total) in self.contents.items() if reason is None)

    def bad_content(self, unreadable: Iterable[str]) -> str | None:
        """A digest of the rows for the quarantine.

        Args:
            unreadable: paths of files that cannot be read; each is a row of it too.
        """
        bad = ((reason, xor, total) for reason, (xor, total) in self.contents.items() if reason is not None)
        return digest((*bad, *((UNREADABLE, path) for path in unreadable)))

    def broken(self, index: int) -> int:
        """Rows for bronze that break a rule which is counted on its own."""
        return sum(group[f"broken_{index}"] for group in self.groups if group[NAME] not in self.bad_headers)

    def partition_starts(self) -> dict[int, int]:
        """Partition of the cached batch -> number of rows in the partitions before it."""
        sizes: dict[int, int] = {}
        for group in self.groups:
            sizes[group["pid"]] = sizes.get(group["pid"], 0) + group["rows"]
        starts, total = {}, 0
        for pid in sorted(sizes):
            starts[pid] = total
            total += sizes[pid]
        return starts

    def block_starts(self) -> list[tuple[str, int, int, int]]:
        """(file, block, order of its first row, lines of the file before it): what numbers the lines of each file."""
        blocks: dict[tuple[str, int], list[int]] = {}
        for group in self.groups:
            entry = blocks.setdefault((group[NAME], group[BLOCK]), [group["first"], 0])
            entry[0] = min(entry[0], group["first"])
            entry[1] += group["rows"]
        starts, lines = [], {name: 0 for name, _ in blocks}
        for (name, block), (first, rows) in sorted(blocks.items()):
            starts.append((name, block, first, lines[name]))
            lines[name] += rows
        return starts


def first_rows(counted: Iterable[Row]) -> dict[str, Row]:
    """File -> the group that its first line is in; `first_line` of the group is that line."""
    firsts: dict[str, Row] = {}
    for group in counted:
        if group[BLOCK] == 0:
            known = firsts.setdefault(group[NAME], group)
            firsts[group[NAME]] = min(known, group, key=lambda row: int(row["first"]))
    return firsts


def blocks_of(counted: Iterable[Row]) -> list[Block]:
    """The pieces in which the files were read, from the counts of their rows."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for group in counted:
        first, rows = found.get((group[NAME], group[BLOCK]), (group["first"], 0))
        found[group[NAME], group[BLOCK]] = min(first, group["first"]), rows + group["rows"]
    return [Block(file, start, first, rows) for (file, start), (first, rows) in found.items()]
