"""The ledger: what became of every event of a batch, and whether the figures agree.

Two equations (docs/ledger.md):

- in events, per batch: read = on_time + partly_late + late + duplicate + quarantined + filtered + timeless;
- in (event, window) pairs, over the life of a checkpoint: pairs = counted in results + late + still open.
"""

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

FATES = ("on_time", "partly_late", "late", "duplicate", "quarantined", "filtered", "timeless")
"""What may become of an event: each meets exactly one of these."""

WARNING = "warn: "
"""Before the name of a rule in `reasons`: its rows were not set aside."""


class LedgerRow(BaseModel):
    """One batch.

    Attributes:
        started_ms: when the batch began, in milliseconds since 1970.
        watermark_ms: Spark's watermark W(N) of this batch: windows that end at or before it are closed.
        late_watermark_ms: W(N-1), by which late events are judged.
        grace_ms: allowed lateness; people are shown the published watermark, W + grace.
        read: events that the batch read (heartbeats are none).
        on_time: counted in all of their windows.
        within_grace: of these, the events of which a window had passed the published watermark.
        partly_late: counted in some of their windows, late for the others.
        late: counted in no window.
        duplicate: removed by a `Deduplicate`.
        quarantined: set aside at ingest.
        filtered: removed by the definition's `Where`.
        timeless: without an event time, hence in no window. Ingest sets events without the ingest's own event time
            aside; a pipeline may go by another column, or compute one.
        pairs: (event, window) pairs of the events that passed `Where`; without windows, these events.
        pairs_late: of these, the late ones.
        pairs_result: sum of `__events` of the rows that this batch wrote as final, before `TopN` cuts; None where
            the sink is `update`, whose table holds all that was counted.
        state_groups: groups that Spark keeps in its state after this batch.
        rows: rows of the result table that the batch wrote.
        heartbeats: heartbeat rows that the batch read.
        source_rows: rows, heartbeats included, that the logs of the source tables hold between the batch's first and
            last offset; None where the source is no table, or another program left no statistics in it.
        reasons: quarantined rows by reason, and rows that only warn by `warn: <rule>`.
        searched: rows for bronze that were searched for fields that no column takes, at ingest from JSON: all of a
            small batch, some of a large one.
        unknown: of these, rows with such a field.
        unknown_fields: some of these fields.
        nulls: column -> rows for bronze that have no value in it, at ingest; those without any are left out.
        sources: source -> the offset up to which the batch read, as Spark's log has it.
    """

    model_config = ConfigDict(frozen=True)

    started_ms: int
    watermark_ms: int = 0
    late_watermark_ms: int = 0
    grace_ms: int = 0
    read: int
    on_time: int
    within_grace: int = 0
    partly_late: int = 0
    late: int = 0
    duplicate: int = 0
    quarantined: int = 0
    filtered: int = 0
    timeless: int = 0
    pairs: int = 0
    pairs_late: int = 0
    pairs_result: int | None = None
    state_groups: int | None = None
    rows: int = 0
    heartbeats: int = 0
    source_rows: int | None = None
    reasons: dict[str, int] = {}
    searched: int = 0
    unknown: int = 0
    unknown_fields: tuple[str, ...] = ()
    nulls: dict[str, int] = {}
    sources: dict[str, str] = {}

    @property
    def accounted(self) -> int:
        """Events whose end is known; equal to `read` where the batch balances."""
        return sum(getattr(self, fate) for fate in FATES)

    @property
    def balanced(self) -> bool:
        """Whether the equation in events holds."""
        return self.accounted == self.read


class Totals(BaseModel):
    """The sums over batches; the pairs of an `append` sink that no result holds yet are open."""

    model_config = ConfigDict(frozen=True)

    batches: int = 0
    read: int = 0
    on_time: int = 0
    within_grace: int = 0
    partly_late: int = 0
    late: int = 0
    duplicate: int = 0
    quarantined: int = 0
    filtered: int = 0
    timeless: int = 0
    pairs: int = 0
    pairs_late: int = 0
    pairs_result: int = 0
    rows: int = 0
    heartbeats: int = 0
    searched: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, rows: Iterable[LedgerRow]) -> Self:
        """Adds up the rows of one epoch."""
        rows = tuple(rows)
        sums = {name: sum(getattr(row, name) or 0 for row in rows) for name in cls.model_fields if name != "batches"}
        return cls(batches=len(rows), **sums)

    @property
    def pairs_open(self) -> int:
        """Pairs that are neither in a final result nor late."""
        return self.pairs - self.pairs_late - self.pairs_result


def discrepancies(
    rows: Sequence[tuple[int, LedgerRow]], *, windowed: bool = True, from_the_start: bool = True
) -> tuple[str, ...]:
    """What does not agree in the batches of one epoch, in words; empty where the ledger balances.

    Args:
        rows: batch number and row, in order of batches.
        windowed: whether results become final, so that an open pair implies a group in Spark's state.
        from_the_start: whether the first row is that of the first batch; what is open is known only then.
    """
    problems = []
    expected = 0 if from_the_start or not rows else rows[0][0]
    opened = 0
    least = 0
    before_ms = 0 if from_the_start or not rows else rows[0][1].late_watermark_ms
    for batch_id, row in rows:
        if batch_id != expected:
            problems.append(f"batch {batch_id}: expected batch {expected} next; its ledger row is missing")
        elif row.late_watermark_ms != before_ms:
            problems.append(
                f"batch {batch_id}: judged by watermark {row.late_watermark_ms}, the batch before had {before_ms}"
            )
        expected, before_ms = batch_id + 1, row.watermark_ms
        if row.watermark_ms < row.late_watermark_ms:
            problems.append(f"batch {batch_id}: watermark {row.watermark_ms} fell from {row.late_watermark_ms}")
        if row.within_grace > row.on_time:
            problems.append(f"batch {batch_id}: {row.within_grace} within grace of {row.on_time} on time")
        if not row.balanced:
            problems.append(f"batch {batch_id}: read {row.read} events, accounts for {row.accounted}")
        if row.source_rows is not None and row.read + row.heartbeats != row.source_rows:
            problems.append(
                f"batch {batch_id}: read {row.read + row.heartbeats} rows, its source has {row.source_rows} between "
                "its offsets"
            )
        if row.pairs_result is None or not from_the_start:
            continue
        opened += row.pairs - row.pairs_late - row.pairs_result
        if opened < least:
            problems.append(f"batch {batch_id}: results and late rows hold {-opened} pairs more than were read")
            least = opened
        elif opened >= 0 and windowed and row.state_groups is not None:
            if row.state_groups > opened:
                problems.append(f"batch {batch_id}: {row.state_groups} groups in state for {opened} open pairs")
            if row.state_groups == 0 and opened > 0:
                problems.append(f"batch {batch_id}: {opened} pairs are in no result, not late and not in state")
    return tuple(problems)
