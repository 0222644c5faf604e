"""A pipeline and its shadow: where both are, and their rows side by side, by DuckDB. No JVM."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import duckdb
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.opening import exists
from spark_jobs.lake.tables.watermarks import published
from spark_jobs.operations.rebuild.plan import Difference
from spark_jobs.operations.shadow.plan import Known, Passed, known, standing
from spark_jobs.plan import logical
from spark_jobs.plan.changes import changes
from spark_jobs.plan.columns import FINAL_AFTER, REVISED_AT, REVISION, WINDOW_END
from spark_jobs.plan.personal import personal_with
from spark_jobs.spec import Pipeline
from spark_jobs.spec.names import first_of, in_duckdb
from spark_jobs.spec.personal import MASK, is_personal
from spark_jobs.spec.shadows import shadow

TOLERANCE = 1e-9
"""Floating-point values whose relative difference is no more are the same: sums differ in their last digits by the
order in which they were added."""

_SHOWN = 10
_NOT_COMPARED = frozenset({FINAL_AFTER, REVISION, REVISED_AT, "is_final"})
_FLOATING = ("DOUBLE", "FLOAT")


class Standing(BaseModel):
    """Where one of the two is.

    Attributes:
        pipeline: its name.
        table: its result.
        state: `running` or `stopped`, as ordered; `not deployed`.
        batches: of its epoch.
        watermark: that it has published.
        rows_behind: that its source has and it has not read, by its driver; None: nobody says.
        read: events.
        late_share: of those read; None: nothing can be late, or nothing was read.
        quarantine_share: rows set aside among those read.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    table: str
    state: str
    batches: int = 0
    watermark: datetime | None = None
    rows_behind: int | None = None
    read: int = 0
    late_share: float | None = None
    quarantine_share: float | None = None


class Comparison(BaseModel):
    """The rows of both, up to the watermark that both have passed.

    Attributes:
        same: rows that agree in every column that both have.
        changed: rows with other values.
        only_pipeline: rows whose key only the table has.
        only_shadow: rows whose key only the shadow's table has.
        beyond: rows of both tables beyond that watermark, which were not compared.
        columns_pipeline: that only the table has.
        columns_shadow: that only the shadow's table has.
        retyped: columns of another type, which were not compared.
        keyed: whether rows were compared one by one: both tables tell rows apart by the same columns.
        examples: some of the rows that are not the same.
    """

    model_config = ConfigDict(frozen=True)

    same: int
    changed: int
    only_pipeline: int
    only_shadow: int
    beyond: int
    columns_pipeline: tuple[str, ...] = ()
    columns_shadow: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    keyed: bool = True
    examples: tuple[Difference, ...] = ()


class Beside(BaseModel):
    """A pipeline and its shadow.

    Attributes:
        pipeline: where the version that runs is.
        shadow: where the other one is.
        changed: the fields in which their definitions differ.
        upto: the event time up to which both have closed windows; None: one of them has closed none.
        comparison: of their rows; None: nothing can be compared yet.
        why: nothing can be; or what is to be known of what was.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: Standing
    shadow: Standing
    changed: tuple[str, ...]
    upto: datetime | None
    comparison: Comparison | None
    why: str = ""


def look(lake: Lake, name: str) -> Beside:
    """Looks at a pipeline and its shadow; changes nothing.

    Args:
        lake: where.
        name: of the pipeline.

    Raises:
        ShadowError: if it has no shadow.
        CheckpointError: if the pipeline itself has not run.
    """
    its, mine = standing(lake, name), known(lake, name)
    if mine is None:
        raise CheckpointError(f"pipeline `{name}`: has not run on {lake.uri}: its shadow has nothing beside it.")
    old, new = _pipeline(mine), _pipeline(its)
    fields = tuple(change.field for change in changes(shadow(old), new))
    found = Passed.of(lake, name)
    comparison, why = None, ""
    if missing := [each.sink.table for each in (old, new) if not exists(lake, each.sink.table)]:
        why = f"{missing[0]} does not exist yet"
    elif found.both is None and old.watermark is not None and new.watermark is not None:
        why = f"both have to pass a watermark first ({found.text})"
    else:
        comparison = compare(lake, old, new, upto=found.both)
        if not _closes(old, new, found.both):
            why = "rows of such a pipeline are never closed: where one has read more than the other, they differ"
    return Beside(
        pipeline=_standing(lake, mine, old),
        shadow=_standing(lake, its, new),
        changed=fields,
        upto=found.both,
        comparison=comparison,
        why=why,
    )


def _pipeline(each: Known) -> Pipeline:
    """What it has run with; a deployed version that has not started yet has written nothing."""
    definition = begun_with(each.epoch) if each.epoch is not None else each.definition
    if not isinstance(definition, Pipeline):
        raise CheckpointError(f"pipeline `{each.name}`: expected a pipeline, is an ingest. Nothing was compared.")
    return definition


def _standing(lake: Lake, each: Known, definition: Pipeline) -> Standing:
    table = definition.sink.table
    found = Standing(pipeline=each.name, table=table, state=each.order.state if each.order else "not deployed")
    behind = _rows_behind(lake, each.name)
    if each.epoch is None:
        return found.model_copy(update={"rows_behind": behind})
    try:
        equations = logical.build(definition).equations
        totals = epoch_ledger(lake, table, each.name, each.epoch.number, equations, last=1).totals
    except MissingTableError:
        return found.model_copy(update={"rows_behind": behind})
    read = totals["read"]
    late = (totals["late"] + totals["partly_late"]) / read if read and definition.watermark else None
    return found.model_copy(
        update={
            "batches": totals.batches,
            "watermark": published(lake).get(each.name),
            "rows_behind": behind,
            "read": read,
            "late_share": late,
            "quarantine_share": totals["quarantined"] / read if read else None,
        }
    )


def _rows_behind(lake: Lake, name: str) -> int | None:
    for job, desired in orders.all_desired(lake).items():
        seen = job_now(lake, job).pipeline(name) if name in desired.running else None
        if seen is not None:
            return seen.figures.rows_behind
    return None


def compare(lake: Lake, old: Pipeline, new: Pipeline, *, upto: datetime | None) -> Comparison:
    """The rows of two results side by side.

    Args:
        lake: where.
        old: whose table is there already.
        new: its shadow.
        upto: the watermark that both have passed; None: all rows are compared.
    """
    with query.connect(lake) as connection:
        return _Tables(connection, old, new, upto).comparison()


def _closes(old: Pipeline, new: Pipeline, upto: datetime | None) -> bool:
    return upto is not None and all(_placed_by(each) for each in (old, new))


def _placed_by(pipeline: Pipeline) -> tuple[str, ...]:
    operator = logical.build(pipeline).operator
    return operator.recomputation.placed_by if operator is not None else ()


class _Tables:
    """Two results in one connection.

    Args:
        connection: with a view for each table.
        old: whose table is there already.
        new: its shadow.
        upto: as `compare`.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, old: Pipeline, new: Pipeline, upto: datetime | None
    ) -> None:
        self._connection, self._old, self._new = connection, old, new
        self._upto_us = None if upto is None else round(upto.timestamp() * 1_000_000)
        self._types = [self._types_of(each.sink.table) for each in (old, new)]
        self._personal = personal_with(old, new).of(new.sink.table)

    def comparison(self) -> Comparison:
        before, after = self._types
        retyped = [
            f"{name}: {before[name]}, {after[name]}" for name in before if after.get(name, before[name]) != before[name]
        ]
        columns = {
            "columns_pipeline": tuple(name for name in before if name not in after),
            "columns_shadow": tuple(name for name in after if name not in before),
            "retyped": tuple(retyped),
            "beyond": sum(self._count(each, f"NOT ({self._closed(each)})") for each in (self._old, self._new)),
        }
        shared = [name for name in before if after.get(name) == before[name]]
        keys = [sorted(self._keys(each)) for each in (self._old, self._new)]
        if keys[0] != keys[1] or not keys[0] or not set(keys[0]) <= set(shared):
            counts = [self._count(each, self._closed(each)) for each in (self._old, self._new)]
            return Comparison(same=0, changed=0, only_pipeline=counts[0], only_shadow=counts[1], keyed=False, **columns)
        values = [name for name in shared if name not in keys[0]]
        self._join(shared, keys[0], values)
        kinds = dict(self._connection.execute("SELECT kind, count(*) FROM beside GROUP BY kind").fetchall())
        return Comparison(
            same=kinds.get(0, 0),
            changed=kinds.get(1, 0),
            only_shadow=kinds.get(2, 0),
            only_pipeline=kinds.get(3, 0),
            examples=tuple(self._examples(keys[0], values)),
            **columns,
        )

    def _types_of(self, table: str) -> dict[str, str]:
        rows = self._connection.execute(f"DESCRIBE {query.view_of(table)}").fetchall()
        return {row[0]: row[1] for row in rows if row[0] not in _NOT_COMPARED}

    def _keys(self, pipeline: Pipeline) -> tuple[str, ...]:
        operator = logical.build(pipeline).operator
        return operator.output.row_keys if operator is not None else ()

    def _closed(self, pipeline: Pipeline) -> str:
        """Which rows of a table neither stream changes any more; SQL."""
        operator, placed = logical.build(pipeline).operator, _placed_by(pipeline)
        if self._upto_us is None or operator is None or not placed:
            return "true"
        if WINDOW_END in self._types[0] and WINDOW_END in self._types[1]:
            return f"{in_duckdb(WINDOW_END)} <= make_timestamptz({self._upto_us})"
        open_us = min(operator.recomputation.first_open_us(self._upto_us // 1000), self._upto_us + 1)
        return f"coalesce({first_of(placed, in_duckdb)} < make_timestamptz({open_us}), true)"

    def _count(self, pipeline: Pipeline, where: str) -> int:
        sql = f"SELECT count(*) FROM {query.view_of(pipeline.sink.table)} WHERE {where}"
        return int(self._connection.execute(sql).fetchall()[0][0])

    def _join(self, shared: Sequence[str], keys: Sequence[str], values: Sequence[str]) -> None:
        """Makes the table `beside`: `kind` is 0 for the same, 1 for other values, 2 and 3 for rows of one side."""
        sides = []
        for side, pipeline in (("o", self._old), ("n", self._new)):
            selected = ", ".join(f"{in_duckdb(name)} AS {in_duckdb(f'{side}_{name}')}" for name in shared)
            view = query.view_of(pipeline.sink.table)
            sides.append(f"(SELECT true AS {side}_is, {selected} FROM {view} WHERE {self._closed(pipeline)})")
        on = " AND ".join(f"{in_duckdb(f'o_{name}')} IS NOT DISTINCT FROM {in_duckdb(f'n_{name}')}" for name in keys)
        same = " AND ".join(map(self._agrees, values)) or "true"
        self._connection.execute(
            f"CREATE TEMP TABLE beside AS SELECT *, CASE WHEN o_is IS NULL THEN 2 WHEN n_is IS NULL THEN 3 "
            f"WHEN {same} THEN 0 ELSE 1 END AS kind FROM {sides[0]} FULL JOIN {sides[1]} ON {on}"
        )

    def _agrees(self, name: str) -> str:
        old, new = in_duckdb(f"o_{name}"), in_duckdb(f"n_{name}")
        equal = f"{old} IS NOT DISTINCT FROM {new}"
        if self._types[0][name] not in _FLOATING:
            return equal
        near = f"abs({old} - {new}) <= {TOLERANCE} * greatest(abs({old}), abs({new}))"
        return f"({equal} OR coalesce(isfinite({old}) AND isfinite({new}) AND {near}, false))"

    def _examples(self, keys: Sequence[str], values: Sequence[str]) -> Iterable[Difference]:
        order = ", ".join(in_duckdb(f"{side}_{name}") for name in keys for side in "on")
        differing = ", ".join(f"{self._agrees(name)} AS {in_duckdb(f'same_{name}')}" for name in values)
        more = f", {differing}" if differing else ""
        found = query.fetch_rows(
            self._connection,
            f"SELECT *{more} FROM beside WHERE kind > 0 ORDER BY kind, {order} LIMIT {_SHOWN}",
        )
        for row in found:
            yield Difference(row=self._row(row, keys), what=self._what(row, values))

    def _row(self, row: Mapping[str, Any], keys: Sequence[str]) -> str:
        side = "o" if row["kind"] == 3 else "n"
        return ", ".join(f"{name}={self._shown(row, side, name)}" for name in keys)

    def _what(self, row: Mapping[str, Any], values: Sequence[str]) -> str:
        if row["kind"] == 1:
            return "; ".join(
                f"{name} is {self._shown(row, 'o', name)}, in the shadow {self._shown(row, 'n', name)}"
                for name in values
                if not row[f"same_{name}"]
            )
        side, where = ("n", "only in the shadow") if row["kind"] == 2 else ("o", "not in the shadow")
        return f"{where}: {', '.join(f'{name}={self._shown(row, side, name)}' for name in values)}"

    def _shown(self, row: Mapping[str, Any], side: str, name: str) -> str:
        if is_personal(name, self._personal):
            return MASK
        value = row[f"{side}_{name}"]
        return value.isoformat(" ") if isinstance(value, datetime) else "null" if value is None else str(value)
