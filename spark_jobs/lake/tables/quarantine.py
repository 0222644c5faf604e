"""What lies in a quarantine, and which of it an ingest could read again; without a JVM."""

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.checkpoints.lineage import Lineage, lineage
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError, TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import reading
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.lake.tables.query import fetch_rows
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.plan.quarantine import HEADER, NO_SUCH_KEY, NOT_AGAIN, SKIPPED, not_again_sql
from spark_jobs.spec import Definition, Ingest
from spark_jobs.spec.names import in_duckdb
from spark_jobs.spec.personal import MASK, is_personal

_LONGEST, _LONGEST_DETAIL = 200, 1000
"""Characters of a row, and of what is wrong with it, that names several columns."""
_NOT_SHOWN = {
    *("_epoch", "_batch_id", "_source", "replayed_batch", "replayed_at", "changes_from", "changes_upto"),
    *("settled_version", "settled_at"),
}


class QuarantineError(TidemarkError):
    """Rows of a quarantine that cannot be shown, or cannot be replayed."""


class Selection(BaseModel):
    """Rows of a quarantine.

    Attributes:
        reasons: with one of these; empty: with any.
        since_us: set aside at this instant or later, microseconds since 1970; None: whenever.
        until_us: before this one; None: whenever.
        earlier_epochs: for a replay: also those of epochs before a reset.
    """

    model_config = ConfigDict(frozen=True)

    reasons: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    earlier_epochs: bool = False

    def sql(self, micros: str) -> str:
        """As a condition over `_ingest_time`; the reasons are not in it, which no two dialects quote alike.

        Args:
            micros: the function that makes a number of an instant.
        """
        found = [f"{micros}(_ingest_time) >= {self.since_us}"] if self.since_us is not None else []
        found += [f"{micros}(_ingest_time) < {self.until_us}"] if self.until_us is not None else []
        return " AND ".join(found) or "true"


@dataclass(frozen=True)
class ReasonCount:
    """The rows that were set aside for one reason.

    Attributes:
        reason: why.
        rows: how many there are.
        first: when the first of them arrived.
        newest: when the newest did.
    """

    reason: str
    rows: int
    first: datetime
    newest: datetime


@dataclass(frozen=True)
class ReplayScope:
    """What a replay would read of a quarantine.

    Attributes:
        version: of the quarantine.
        reasons: reason -> rows that go through the ingest again.
        left: reason and why they cannot -> rows that stay as they are.
    """

    version: int
    reasons: Mapping[str, int]
    left: Mapping[tuple[str, str], int]

    @property
    def rows(self) -> int:
        """That go through the ingest again."""
        return sum(self.reasons.values())


def table_of(lake: Lake, definition: Definition) -> str:
    """The quarantine that a pipeline has on a lake.

    Raises:
        QuarantineError: if it has none.
    """
    table = plan_on(lake, definition).table("quarantine")
    if table is None:
        raise QuarantineError(
            f"pipeline `{definition.name}` sets nothing aside. An ingest does, and a pipeline with "
            'Enrich(missing="quarantine"), or of which a batch was skipped.'
        )
    return table.name


def counted(lake: Lake, definition: Definition, selection: Selection) -> list[ReasonCount]:
    """The rows of a quarantine by reason, the most frequent first.

    Raises:
        MissingTableError: if the pipeline has not run here.
        QuarantineError: if it has no quarantine.
    """
    times = "min(_ingest_time) AS first, max(_ingest_time) AS newest"
    rows = _asked(
        lake,
        definition,
        None,
        f"SELECT reason, count(*) AS rows, {times} FROM set_aside WHERE {_where(selection)} GROUP BY reason "
        "ORDER BY rows DESC, reason",
        selection,
    )
    return [ReasonCount(**row) for row in rows]


def samples(
    lake: Lake, definition: Definition, selection: Selection, number: int, *, personal: PersonalColumns | None = None
) -> dict[str, list[str]]:
    """Some rows of each reason as a person reads them, the newest first; values of personal columns are masked.

    Args:
        lake: where.
        definition: of the pipeline.
        selection: which rows.
        number: so many of each reason.
        personal: which columns these are; None: those that follow from this definition alone.
    """
    known = personal or PersonalColumns((definition,))
    # What any definition declares may stand in a row, too; what nothing declares has nothing to be masked.
    hidden = (
        known.of(table_of(lake, definition)) if not isinstance(definition, Ingest) else known.of(definition.sink.table)
    )
    columns = _columns(lake, definition)
    shown = (
        "reason, detail, raw"
        if isinstance(definition, Ingest)
        else ", ".join(in_duckdb(name) for name in columns if name not in _NOT_SHOWN)
    )
    rows = _asked(
        lake,
        definition,
        None,
        f"SELECT {shown} FROM set_aside WHERE {_where(selection)} QUALIFY row_number() "
        f"OVER (PARTITION BY reason ORDER BY _epoch DESC, _batch_id DESC) <= {number}",
        selection,
    )
    found: dict[str, list[str]] = {}
    for row in rows:
        reason = str(row.pop("reason"))
        found.setdefault(reason, []).append(_shown(definition, reason, row, hidden))
    return found


@dataclass(frozen=True)
class WaitingEvents:
    """Events of a pipeline's quarantine that a replay would look up again.

    Attributes:
        version: of the quarantine.
        rows: how many there are.
        first_batch: the first batch that set one of them aside for a key; None: there is none.
        unfinished: further events, of a batch that has not ended.
        skipped: of `rows`, those whose batch was skipped.
    """

    version: int
    rows: int
    first_batch: int | None
    unfinished: int
    skipped: int = 0


def waiting(
    lake: Lake, definition: Definition, epochs: Lineage, last_batch: int, selection: Selection
) -> WaitingEvents:
    """What a replay of a pipeline's quarantine would read; nothing is written.

    Args:
        lake: where.
        definition: of the pipeline, which looks something up.
        epochs: of its checkpoint; what was set aside before was read again since.
        last_batch: the newest that has ended.
        selection: what somebody wants to have replayed.

    Raises:
        QuarantineError: if a reason is named of which nothing is there.
    """
    opened = _opened(lake, definition, None)
    there = counted(lake, definition, Selection())
    known = {each.reason for each in there}
    # A replay before this one may have found all of these.
    known_or_gone = {*known, NO_SUCH_KEY, SKIPPED}
    if unknown := [reason for reason in selection.reasons if reason not in known_or_gone]:
        said = ", ".join(f"`{reason}`" for reason in sorted(known)) or "nothing"
        raise QuarantineError(
            f"pipeline `{definition.name}`: expected rows with reason {unknown[0]!r} in its quarantine, got none. "
            f"There is: {said}. Nothing was replayed."
        )
    (row,) = _asked(
        lake,
        definition,
        opened.version(),
        f"SELECT count(*) FILTER (_batch_id <= {last_batch}) AS rows, "
        f"min(_batch_id) FILTER (reason <> '{SKIPPED}') AS first_batch, "
        f"count(*) FILTER (_batch_id > {last_batch}) AS unfinished, "
        f"count(*) FILTER (_batch_id <= {last_batch} AND reason = '{SKIPPED}') AS skipped "
        f"FROM set_aside WHERE {epochs.rows} AND {_where(selection)}",
        selection,
    )
    return WaitingEvents(opened.version(), **row)


def selected(lake: Lake, ingest: Ingest, epoch: int, selection: Selection, *, may_be_gone: bool = False) -> ReplayScope:
    """What a replay of an ingest would read; nothing is written.

    Args:
        lake: where.
        ingest: as it is now.
        epoch: of its checkpoint; rows of those before were read again since from the start of the source.
        selection: what somebody wants to have replayed.
        may_be_gone: a replay before this one may have taken all rows of a reason that is named.

    Raises:
        QuarantineError: if a reason is named of which nothing is there, or nothing can be replayed.
    """
    version = open_table(lake, table_of(lake, ingest)).version()
    why = why_not(ingest, None if selection.earlier_epochs else lineage(lake, ingest.name, epoch))
    groups = _asked(
        lake,
        ingest,
        version,
        f"SELECT reason, {why} AS why, count(*) AS rows FROM set_aside WHERE {_where(selection)} GROUP BY ALL "
        "ORDER BY reason, why",
        selection,
    )
    reasons = {row["reason"]: row["rows"] for row in groups if row["why"] is None}
    left = {(row["reason"], row["why"]): row["rows"] for row in groups if row["why"] is not None}
    there = {row["reason"] for row in groups}
    for reason in () if may_be_gone else selection.reasons:
        if reason not in there:
            known = ", ".join(f"`{each.reason}`" for each in counted(lake, ingest, Selection())) or "nothing"
            raise QuarantineError(
                f"ingest `{ingest.name}`: expected rows with reason {reason!r} in its quarantine, in the time that was "
                f"asked for, got none. There is: {known}. Nothing was replayed."
            )
        if reason not in reasons:
            whys = "; ".join(NOT_AGAIN[why] for given, why in left if given == reason)
            raise QuarantineError(
                f"ingest `{ingest.name}`: rows with reason {reason!r} cannot be replayed: {whys}. Nothing was replayed."
            )
    return ReplayScope(version, reasons, left)


def why_not(ingest: Ingest, epochs: Lineage | None) -> str:
    """Why a row of an ingest's quarantine cannot be read again, as a key of `NOT_AGAIN`; SQL, null where it can."""
    return not_again_sql(
        epochs.epochs if epochs else (), of_parquet=ingest.source.is_parquet, of_csv=ingest.source.is_csv
    )


def _columns(lake: Lake, definition: Definition) -> list[str]:
    return [field.name for field in _opened(lake, definition, None).schema().fields]


def _opened(lake: Lake, definition: Definition, version: int | None) -> Any:
    table = table_of(lake, definition)
    try:
        return open_table(lake, table, version=version)
    except MissingTableError:
        raise MissingTableError(
            f"table {table}: not in the lake {lake.uri}. It comes with the first run: {command('run', definition.name)}"
        ) from None


def _where(selection: Selection) -> str:
    reasons = " AND list_contains($reasons, reason)" if selection.reasons else ""
    return selection.sql("epoch_us") + reasons


def _asked(
    lake: Lake, definition: Definition, version: int | None, sql: str, selection: Selection
) -> list[dict[str, Any]]:
    table = table_of(lake, definition)
    opened = _opened(lake, definition, version)
    # What a replay has looked up again is set aside no more; an ingest's is not in the table any more.
    replayed = "replayed_batch" in {field.name for field in opened.schema().fields}
    left = "replayed_batch IS NULL" if replayed else "true"
    with duckdb.connect() as connection, reading(lake, lambda _: [table], version=version):
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("all_rows", opened.to_pyarrow_dataset())
        connection.execute(f"CREATE TEMP VIEW set_aside AS SELECT * FROM all_rows WHERE {left}")
        return fetch_rows(connection, sql, {"reasons": list(selection.reasons)} if selection.reasons else None)


def _shown(definition: Definition, reason: str, row: Mapping[str, Any], hidden: Collection[str]) -> str:
    if not isinstance(definition, Ingest):
        values = {name: MASK if is_personal(name, hidden) else value for name, value in row.items()}
        return _cut(", ".join(f"{name}={value}" for name, value in values.items()))
    raw, detail = row["raw"], row["detail"] or ""
    mine = [name for name in definition.columns if is_personal(name, hidden)]
    if mine:
        # In a file with another header, or without one, the columns may be in any order.
        raw = MASK if reason == HEADER else masked(definition, raw, mine) if raw is not None else None
        # What was set aside before the column was declared, and bytes that are no text, stand there in full.
        words = detail.casefold()
        named = any(f"{name} is ".casefold() in words and f"{name} is {MASK}".casefold() not in words for name in mine)
        expected, got, _ = detail.partition(", got ")
        detail = f"{expected}{got}{MASK}" if reason == HEADER and got else detail
        detail = MASK if named or "base64" in detail else detail
    return _cut("(no text)" if raw is None else raw) + (f"    {_cut(detail, _LONGEST_DETAIL)}" if detail else "")


def masked(ingest: Ingest, raw: str, personal: Collection[str] | None = None) -> str:
    """The text of a row without values of personal columns; of a text that cannot be taken apart nothing is shown.

    Args:
        ingest: whose row it is.
        raw: its text.
        personal: columns; None: those that the ingest declares.
    """
    hidden = {name.casefold() for name in (ingest.personal if personal is None else personal)}
    shown = {name.casefold() for name in ingest.columns} - hidden
    if ingest.source.is_csv:
        values = next(iter(csv.reader([raw], delimiter=ingest.source.delimiter)), [])
        if len(values) != len(ingest.columns):
            return MASK
        return ingest.source.delimiter.join(
            MASK if name.casefold() in hidden else value for name, value in zip(ingest.columns, values, strict=True)
        )
    try:
        found = json.loads(raw)
    except ValueError:
        return MASK
    if not isinstance(found, dict):
        return MASK
    # A field that no column takes may be a personal one under another name.
    return json.dumps({k: v if k.casefold() in shown else MASK for k, v in found.items()}, ensure_ascii=False)


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


def described(reasons: Mapping[str, int]) -> str:
    """Reasons with their counts, in a line."""
    parts: Sequence[str] = [
        f"{reason} {rows:,}" for reason, rows in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))
    ]
    return ", ".join(parts)
