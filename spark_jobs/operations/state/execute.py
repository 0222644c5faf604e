"""Reads state from a copy of a checkpoint."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.engine.reading import BronzeReader
from spark_jobs.lake.checkpoints.copying import copy_batch
from spark_jobs.lake.location import Lake
from spark_jobs.operations.state.plan import StateRequest
from spark_jobs.plan import logical
from spark_jobs.plan.columns import WINDOW_END
from spark_jobs.plan.personal import personal_with
from spark_jobs.spark.state_rows import StoreFrame, only, sides_of, store_frame
from spark_jobs.spec import DefinitionError
from spark_jobs.spec.personal import MASK, is_personal
from spark_jobs.transforms.branches import Branches


@dataclass(frozen=True)
class StateRows:
    """Rows of an operator's state, as a batch has left it.

    Attributes:
        batch: its number.
        watermark_ms: after it, milliseconds since 1970; 0: none.
        operator: its number.
        name: Spark's name of the operator.
        side: of a join; empty: of none.
        columns: names.
        rows: values; those of personal columns are masked.
        more: whether there are more than were asked for.
    """

    batch: int
    watermark_ms: int
    operator: int
    name: str
    side: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool


def read_state(spark: SparkSession, lake: Lake, asked: StateRequest) -> list[StateRows]:
    """The rows of state that somebody asked for, by operator and side; the checkpoint is only read.

    Args:
        spark: a session on this machine.
        lake: where.
        asked: what is wanted.

    Raises:
        CheckpointError: if the files of the batch are not all there, or not whole.
        DefinitionError: if no state has a column that was named, or windows.
    """
    with tempfile.TemporaryDirectory(prefix="tidemark-state-") as folder:
        checkpoint, batch = copy_batch(lake, asked.epoch, Path(folder), at=asked.at)
        watermark_ms = checkpoint.committed(batch).watermark_ms
        kept = _kept(spark, lake, asked)
        frames = [
            store_frame(spark, f"file://{folder}", asked.pipeline, operator=number, name=name, side=side, kept=kept)
            for number in checkpoint.operator_numbers()
            for name in (checkpoint.operator(number).name,)
            for side in sides_of(name)
        ]
        return [_rows(frame, asked, batch, watermark_ms) for frame in _that_have(frames, asked)]


def _kept(spark: SparkSession, lake: Lake, asked: StateRequest) -> tuple[DataFrame, ...]:
    """The events of each side with the columns of those that the state keeps packed."""
    plan = logical.build(asked.pipeline)
    if plan.operator is None or not plan.operator.state.packs_events:
        return ()
    reader = BronzeReader(spark, lake, asked.pipeline, plan)
    reader.look()
    lookups = {step.table: spark.read.format("delta").load(lake.table_path(step.table)) for step in plan.lookups}
    return Branches(plan, lookups).kept([reader.events(table) for table in plan.reads])


def _that_have(frames: list[StoreFrame], asked: StateRequest) -> Iterator[StoreFrame]:
    """Those that have all columns which were named.

    Raises:
        DefinitionError: if none has.
    """
    wanted = {name for name, _ in asked.keys} | ({WINDOW_END} if asked.open_windows else set())
    found = [each for each in frames if wanted <= set(each.frame.columns)]
    if not found:
        known = "; ".join(", ".join(each.frame.columns) for each in frames)
        raise DefinitionError(
            f"pipeline `{asked.pipeline.name}`: its state has no columns {', '.join(sorted(wanted))}; it has {known}."
        )
    yield from found


def _rows(frame: StoreFrame, asked: StateRequest, batch: int, watermark_ms: int) -> StateRows:
    wanted = only(frame, asked.keys, watermark_ms if asked.open_windows else None)
    table = wanted.limit(asked.limit + 1).toArrow()
    hidden = personal_with(asked.pipeline)
    names = tuple(wanted.columns)
    personal = hidden.touching(asked.pipeline) | hidden.of(asked.pipeline.sink.table)
    columns = [
        [MASK] * table.num_rows if is_personal(name, personal) else table.column(at).to_pylist()
        for at, name in enumerate(names)
    ]
    rows = tuple(zip(*columns, strict=True))
    return StateRows(
        batch=batch,
        watermark_ms=watermark_ms,
        operator=frame.operator,
        name=frame.name,
        side=frame.side,
        columns=names,
        rows=rows[: asked.limit],
        more=len(rows) > asked.limit,
    )
