"""Divides the state anew, compares it with what it was, and gives the batch that did it its entry in the ledger.

In this order: until the ledger has the batch no stream starts, so nothing goes on from state that was not compared.
Each part finds what an interrupted run has done, and the same command finishes it.
"""

import time

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.commits.changes import Append
from spark_jobs.commits.writer import TableWriter
from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.engine.failures import root_cause
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.rescaling import unfinished
from spark_jobs.lake.checkpoints.spark_log import newest_batch, query_id
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.errors import CheckpointError, LedgerError
from spark_jobs.operations.rescale.plan import RescalePlan, RescaleRefusedError
from spark_jobs.operations.shape import Say
from spark_jobs.operations.words import counted
from spark_jobs.spark.state import repartition, state_hashes
from spark_jobs.transforms.content import digest_sql

Contents = dict[tuple[int, str], tuple[int, ...]]
"""Operator and store -> how many rows it has, and figures that tell them from others."""


def carry_out(spark: SparkSession, lake: Lake, plan: RescalePlan, say: Say) -> None:
    """Executes a plan, and says what was done.

    Args:
        spark: the session.
        lake: where.
        plan: what has to be done.
        say: is told of it.

    Raises:
        DeployError: if a driver runs the pipeline by now.
        RescaleRefusedError: if Spark cannot divide the state, or another driver has planned a batch meanwhile.
        LedgerError: if the state is not the same afterwards.
        CheckpointError: if the next start would not find all that it needs.
    """
    refuse_deployed(lake, [plan.pipeline])
    if not plan.repartitioned:
        _repartition(spark, lake, plan)
    compare(spark, lake, plan)
    _refuse_faults(lake, plan)
    note(lake, plan)
    say(
        f"{plan.pipeline}: its state is the same as before, {counted(plan.rows, 'row')}, now in "
        f"{counted(plan.partitions, 'partition')}. Batch {plan.batch} says so in the ledger. Start it: "
        f"{command('run', plan.pipeline)}"
    )


def _repartition(spark: SparkSession, lake: Lake, plan: RescalePlan) -> None:
    error: Exception | None = None
    try:
        repartition(spark, lake.path(plan.epoch.folder), plan.partitions)
    except (Py4JJavaError, PySparkException) as raised:
        error = raised
    begun = unfinished(lake, plan.epoch, plan.last)
    if begun is not None and begun.repartitioned:
        return
    why = f": {root_cause(error)}" if error is not None else ""
    if begun is not None:
        raise RescaleRefusedError(
            f"pipeline `{plan.pipeline}`: Spark could not divide its state{why}. What batch {plan.last} has left is as "
            f"it was, and no table was written. Run the same command again. {_back(lake, plan)}"
        ) from error
    if newest_batch(lake, plan.epoch.folder, "offsets") == plan.last:
        raise RescaleRefusedError(
            f"pipeline `{plan.pipeline}`: Spark has not begun to divide its state{why}. Nothing was changed."
        ) from error
    raise RescaleRefusedError(
        f"pipeline `{plan.pipeline}`: a driver has planned batch {plan.batch} meanwhile. Nothing was written here. End "
        f"that driver, run the batch to its end ({command('run', plan.pipeline, '--until-caught-up')}), then run the "
        "same command again."
    ) from error


def compare(spark: SparkSession, lake: Lake, plan: RescalePlan) -> None:
    """Holds the state in its new partitions against that in the old ones.

    Raises:
        LedgerError: if they are not the same rows.
    """
    before, after = (contents(spark, lake, plan, batch) for batch in (plan.last, plan.batch))
    if before != after:
        told = "; ".join(
            f"operator {number}, {store}: {_count(before, (number, store))} rows before, "
            f"{_count(after, (number, store))} after"
            for number, store in sorted(before.keys() | after.keys())
            if before.get((number, store)) != after.get((number, store))
        )
        raise LedgerError(
            f"pipeline `{plan.pipeline}`: its state in {counted(plan.partitions, 'partition')} is another one ({told})."
            f" No table was written, and the pipeline does not start as it is. {_back(lake, plan)}"
        )


def _count(found: Contents, key: tuple[int, str]) -> str:
    return f"{found[key][0]:,}" if key in found else "no"


def _back(lake: Lake, plan: RescalePlan) -> str:
    """How a person goes back to the state as it was."""
    folder = lake.path(plan.epoch.folder)
    return (
        f"To go back to the state of batch {plan.last}, which is whole, remove {folder}/commits/{plan.batch} if it is "
        f"there, then {folder}/offsets/{plan.batch}."
    )


def contents(spark: SparkSession, lake: Lake, plan: RescalePlan, batch: int) -> Contents:
    """The state as a batch has left it, as a multiset of rows: in whatever partition each is."""
    checkpoint, found = Checkpoint(lake, plan.epoch), {}
    for number in checkpoint.operator_numbers():
        for store in checkpoint.operator(number).stores:
            several = any(checkpoint.schema(path) is None for path in checkpoint.schemas_of(number, store))
            options = {"operatorId": str(number), "storeName": store, "batchId": str(batch)}
            hashes = state_hashes(spark, lake.path(plan.epoch.folder), of_several_kinds=several, **options)
            found[number, store] = tuple(hashes.selectExpr("count(*)", *digest_sql("row_hash")).collect()[0])
    return found


def _refuse_faults(lake: Lake, plan: RescalePlan) -> None:
    faults = [fault for fault in verify(Checkpoint(lake, plan.epoch), plan.definition) if fault.stops and fault.path]
    if faults:
        raise CheckpointError(
            f"pipeline `{plan.pipeline}`: its state is divided anew, and the next start would not find all of it: "
            f"{faults[0].path}: {faults[0].what}. No table was written. {_back(lake, plan)}"
        )


def note(lake: Lake, plan: RescalePlan) -> None:
    """Gives the batch that has divided the state its entry in the ledger, once: a commit without rows."""
    table, name, number = plan.definition.sink.table, plan.pipeline, plan.epoch.number
    before = find_stamp(
        lake,
        table,
        lambda stamp: (stamp.pipeline, stamp.role, stamp.epoch, stamp.batch_id) == (name, "result", number, plan.last),
    )
    assert before is not None  # the plan has seen it
    assert before.ledger is not None
    stamp = before.model_copy(
        update={"batch_id": plan.batch, "rows": 0, "content": None, "ledger": entry_after(before.ledger)}
    )
    writer = TableWriter(lake, table, "result", name, str(query_id(lake, plan.epoch.folder)), number)
    writer.commit(Append(pa.table({}), 0, 0), stamp)


def entry_after(before: LedgerEntry) -> LedgerEntry:
    """The entry of a batch that only divides the state anew, from that of the batch before it.

    Its watermark, and that by which late events are judged, is that of the batch before: the batch after it finds in
    the checkpoint what it would have found without it.
    """
    in_state = {term: count for term, count in before.terms.items() if term.endswith("state_rows")}
    return LedgerEntry(
        kind="rescale",
        started_ms=round(time.time() * 1000),
        watermark_ms=before.watermark_ms,
        late_watermark_ms=before.watermark_ms,
        grace_ms=before.grace_ms,
        # A lookup's version is read as a whole; of a source nothing is read after where the batch before had got.
        reads={table: (after, after) for table, (_, after) in before.reads.items()},
        table_ids=before.table_ids,
        terms={**dict.fromkeys(before.terms, 0), **in_state},
        sources=before.sources,
    )
