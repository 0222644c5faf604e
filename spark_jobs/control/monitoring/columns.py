"""What the columns of an ingest took in its newest batches, and which of them held values before."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.control.monitoring.health import FEWEST_EVENTS, ColumnUsage
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.spec import Ingest

_WINDOW = timedelta(minutes=10)


class _HeldColumns(BaseModel):
    """The columns of one ingest that have held values in this epoch: a column that never did is not suddenly empty."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    columns: tuple[str, ...] = ()


class _KnownColumns(PersistedValue):
    """Ingest -> its columns that have held values."""

    ingests: Mapping[str, _HeldColumns] = {}


class Columns:
    """What is known of the columns of all ingests, from look to look.

    Args:
        lake: where.
    """

    def __init__(self, lake: Lake) -> None:
        self._records = Records(lake, f"{CONTROL}/_monitor/columns", _KnownColumns)
        self._number, before = self._records.newest()
        self._before = before or _KnownColumns()
        self._now: dict[str, _HeldColumns] = {}

    def taken(self, definition: Ingest, epoch: int, rows: Iterable[LedgerEntry], *, now: datetime) -> ColumnUsage:
        """What the columns took in the batches of the last ten minutes.

        Args:
            definition: of the ingest.
            epoch: of its checkpoint.
            rows: of its newest batches.
            now: the time.
        """
        rows = tuple(rows)
        known = self._before.ingests.get(definition.name)
        held = {*known.columns} if known is not None and known.epoch == epoch else set()
        events, nulls = _sums(rows)
        if events >= FEWEST_EVENTS:
            held |= {name for name in definition.columns if 2 * nulls.get(name, 0) <= events}
        self._now[definition.name] = _HeldColumns(epoch=epoch, columns=tuple(sorted(held)))
        recent = [row for row in rows if now.timestamp() - row.started_ms / 1000 <= _WINDOW.total_seconds()]
        events, nulls = _sums(recent)
        return ColumnUsage(
            events=events,
            searched=sum(row["searched"] for row in recent),
            unknown=sum(row["unknown"] for row in recent),
            fields=tuple(sorted({name for row in recent for name in row.unknown_fields})),
            nulls={name: count for name, count in nulls.items() if name in held},
        )

    def keep(self) -> None:
        """Notes what is known now for the looks to come."""
        after = _KnownColumns(ingests={**self._before.ingests, **self._now})
        if after != self._before:
            try:
                self._records.append(self._number + 1, after)
            except RecordTakenError:
                return  # another monitor looks at the same time and sees the same


def _sums(rows: Sequence[LedgerEntry]) -> tuple[int, dict[str, int]]:
    nulls: dict[str, int] = {}
    for row in rows:
        for name, count in row.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    return sum(row["on_time"] for row in rows), nulls
