"""What was counted of a batch of an ingest: rows for bronze and rows that are set aside, and digests of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_jobs.engine.sources.places import BLOCK, Group
from spark_jobs.plan.quarantine import HEADER, UNREADABLE
from spark_jobs.spark.set_aside import Kind, Tally
from spark_jobs.transforms.content import digest
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import REASON

_NONE = Kind(0, (0, 0))


@dataclass(frozen=True)
class Census:
    """What was counted of a batch.

    Attributes:
        good_rows: for bronze.
        bad_rows: reason -> rows that are set aside.
        counted: figures over the good rows, as `Judge.counted_of_good` names them.
        good_by_file: file -> its good rows, where its header may say more of them.
        bad_headers: file with another header -> that header; its rows are set aside.
        headers: file -> place of its header, which is no row.
    """

    good_rows: Kind
    bad_rows: Mapping[str, Kind]
    counted: Mapping[str, int]
    good_by_file: Mapping[str, int] = field(default_factory=dict)
    bad_headers: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_tally(cls, tally: Tally) -> "Census":
        """What was counted while rows were written.

        Args:
            tally: of them.
        """
        return cls(tally.good, tally.bad, tally.filled)

    @classmethod
    def of_groups(cls, groups: Sequence[Group], figures: Iterable[str], *, has_header: bool) -> "Census":
        """What one counting pass over rows in memory has found.

        Args:
            groups: the counted groups: partition, file, piece of it, reason, whether it is a header line.
            figures: of the groups, those that are counted over good rows.
            has_header: whether files have one.
        """
        bad_headers: dict[str, str] = {}
        headers: dict[str, int] = {}
        if has_header:
            firsts = first_rows(groups)
            bad_headers = {name: group["first_line"] for name, group in firsts.items() if not group["is_header"]}
            # The first line of a file is its header; the same line again is a row that is none.
            headers = {name: int(group["first"]) for name, group in firsts.items() if group["is_header"]}
        kinds: dict[str | None, Kind] = {}
        counted: Counter[str] = Counter()
        good_by_file: Counter[str] = Counter()
        names = tuple(figures)
        for group in groups:
            reason, rows = group[REASON], group["rows"]
            if group[NAME] in bad_headers:
                reason = HEADER
            elif has_header and group["is_header"]:
                reason, rows = HEADER, rows - (group["first"] == headers.get(group[NAME]))
            if not rows:
                continue
            if reason is None:
                counted.update({name: group[name] for name in names})
                good_by_file[group[NAME]] += rows
            known = kinds.get(reason, _NONE)
            content = known.content[0] ^ group["content_xor"], known.content[1] + group["content_sum"]
            kinds[reason] = Kind(known.rows + rows, content)
        bad = {reason: kind for reason, kind in kinds.items() if reason is not None}
        return cls(kinds.get(None, _NONE), bad, counted, good_by_file, bad_headers, headers)

    @property
    def good(self) -> int:
        """How many rows are for bronze."""
        return self.good_rows.rows

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> how many rows are set aside for it."""
        return {reason: kind.rows for reason, kind in self.bad_rows.items()}

    @property
    def quarantined(self) -> int:
        """Rows for the quarantine, without files that cannot be read."""
        return sum(self.reasons.values())

    @property
    def good_content(self) -> str | None:
        """A digest of the rows for bronze."""
        return digest([self.good_rows.content] if self.good else ())

    def bad_content(self, unreadable: Iterable[str]) -> str | None:
        """A digest of the rows for the quarantine.

        Args:
            unreadable: paths of files that cannot be read; each is a row of it too.
        """
        bad = ((reason, *kind.content) for reason, kind in self.bad_rows.items())
        return digest((*bad, *((UNREADABLE, path) for path in unreadable)))

    def broken(self, index: int) -> int:
        """Rows for bronze that break a rule which is counted on its own."""
        return self.counted.get(f"broken_{index}", 0)


def first_rows(counted: Iterable[Group]) -> dict[str, Group]:
    """File -> the group that its first line is in; `first_line` of the group is that line."""
    firsts: dict[str, Group] = {}
    for group in counted:
        if group[BLOCK] == 0:
            known = firsts.setdefault(group[NAME], group)
            firsts[group[NAME]] = min(known, group, key=lambda row: int(row["first"]))
    return firsts
