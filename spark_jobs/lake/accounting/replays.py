"""Replays of quarantined rows: what was asked for, noted before anything is written, and what came of it.

`_checkpoints/<ingest>/replays` has a record each time that one begins or ends. As long as the newest one is open no
other replay of this ingest begins: whoever wants to carries it out to its end first.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from spark_jobs.lake.checkpoints.lineage import Lineage, lineage
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import info_of, replay_commits
from spark_jobs.lake.commit_records.replay_commits import ReplayCommit, decode_replay
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records
from spark_jobs.lake.tables.quarantine import Selection

_ENDS_WITHIN_S = 900
"""So long after its commit to bronze a replay may take to remove the rows from the quarantine."""


class Replay(PersistedValue):
    """A replay that somebody has asked for.

    Attributes:
        pipeline: the ingest.
        run: its id.
        epoch: of the ingest's checkpoint.
        version: of the quarantine, whose rows it reads.
        table_id: of the quarantine that had this version; None: noted by an earlier version of Tidemark.
        selection: which of them.
        rows: how many.
        slice_rows: so many go to bronze in one commit.
        by: who decided it.
        comment: why.
        opened_at: when.
        state: `open` until it has been carried out; `ended`; `given up`: a reset has taken away what it was about.
    """

    pipeline: str
    run: str
    epoch: int
    version: int
    table_id: str | None = None
    selection: Selection
    rows: int
    slice_rows: int
    by: str
    comment: str = ""
    opened_at: datetime
    state: Literal["open", "ended", "given up"] = "open"


def records(lake: Lake, pipeline: str) -> Records[Replay]:
    """The records of an ingest's replays; the newest counts."""
    return Records(lake, f"_checkpoints/{pipeline}/replays", Replay)


def open_replay(lake: Lake, pipeline: str) -> Replay | None:
    """The replay that has begun and not ended; None: there is none."""
    _, newest = records(lake, pipeline).newest()
    return newest if newest is not None and newest.state == "open" else None


def commits_of(
    lake: Lake, table: str, pipeline: str, *, upto: int | None = None, which: Lineage | None = None
) -> list[tuple[int, ReplayCommit]]:
    """When (milliseconds since 1970) and what replays of an ingest have committed to one of its tables, oldest first.

    Args:
        lake: where.
        table: bronze or its quarantine.
        pipeline: the ingest.
        upto: the newest version that counts; None: any.
        which: epochs; what a restore among them has taken back is left out. None: nothing is.
    """
    found: list[tuple[int, ReplayCommit]] = []
    if not records(lake, pipeline).newest_number():
        return found  # none has ever begun
    for version, actions in replay_commits(lake, table):
        info = info_of(actions)
        replayed = decode_replay(info)
        if which is not None and which.undone(table, version):
            continue
        if replayed is not None and replayed.pipeline == pipeline and (upto is None or version <= upto):
            found.append((int(info.get("timestamp", 0)), replayed))
    return found


def terms_of(lake: Lake, table: str, pipeline: str, epoch: int, upto: int) -> Mapping[str, int]:
    """By how many rows replays have changed a table, as terms of the ledger: `replayed` and `released`.

    Args:
        lake: where.
        table: bronze or its quarantine.
        pipeline: the ingest.
        epoch: whose rows count.
        upto: the newest version that counts.
    """
    terms: Counter[str] = Counter()
    which = lineage(lake, pipeline, epoch)
    for _, each in commits_of(lake, table, pipeline, upto=upto, which=which):
        if each.role == "quarantine":
            terms["released"] += sum(each.released.get(one, 0) for one in which.epochs)
        elif each.epoch in which.epochs:
            terms["replayed"] += each.rows
    return terms


@dataclass(frozen=True)
class Account:
    """What became of the rows of one replay.

    Attributes:
        run: its id.
        selected: rows that were read.
        replayed: of these, rows that went to bronze.
        kept: of these, rows that stayed where they are.
        released: rows that were taken out of the quarantine.
        committed_ms: when it last wrote to bronze, milliseconds since 1970.
    """

    run: str
    selected: int
    replayed: int
    kept: int
    released: int
    committed_ms: int

    @property
    def holds(self) -> bool:
        """Whether its figures agree; shortly after its commit to bronze it may still be at work."""
        at_work = not self.released and time.time() - self.committed_ms / 1000 < _ENDS_WITHIN_S
        return self.selected == self.replayed + self.kept and (self.replayed == self.released or at_work)

    def describe(self) -> str:
        """The replay in a line: which rows, asked for by whom."""
        end = f"{self.released:,} taken out of the quarantine"
        if self.replayed and not self.released:
            end = f"still in the quarantine, too: `{command('replay')}` carries it out to its end"
        return (
            f"{self.run}: rows read again {self.selected:,} = replayed {self.replayed:,} + set aside as before "
            f"{self.kept:,}, {end}"
        )


def accounts(lake: Lake, bronze: str, quarantine: str, pipeline: str, epoch: int) -> list[Account]:
    """What became of the rows of each replay of an epoch that has brought rows to bronze, the oldest first."""
    # In this order: what ends in between is known to have begun.
    which = lineage(lake, pipeline, epoch)
    out = {each.run: each.rows for _, each in commits_of(lake, quarantine, pipeline, which=which)}
    sums: dict[str, Counter[str]] = {}
    for at_ms, each in commits_of(lake, bronze, pipeline, which=which):
        if each.epoch in which.epochs and each.ledger is not None:
            found = sums.setdefault(each.run, Counter())
            found.update(each.ledger.terms)
            found["at_ms"] = max(found["at_ms"], at_ms)
    return [
        Account(run, s["selected"], s["replayed"], s["kept"], out.get(run, 0), s["at_ms"]) for run, s in sums.items()
    ]
