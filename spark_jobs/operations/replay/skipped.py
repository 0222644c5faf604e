"""Events whose batch was skipped, on their way back: nothing may fail at them any more before they are counted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.engine.content import condition_of
from spark_jobs.engine.failures import Words, root_cause
from spark_jobs.lake.commands import command
from spark_jobs.lake.tables.quarantine import QuarantineError
from spark_jobs.operations.replay.lookup_plan import LookupPlan
from spark_jobs.plan.columns import HEARTBEAT, SOURCE_TABLE, VERSION_RANGE
from spark_jobs.plan.quarantine import SKIPPED
from spark_jobs.recompute.set_aside import OF_BATCH
from spark_jobs.recompute.target import Target
from spark_jobs.spark.throwables import thrown
from spark_jobs.spec import Definition
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.late import WHY_SET_ASIDE


def compute(target: Target, rows: DataFrame, lookups: Mapping[str, DataFrame], version_range: int) -> None:
    """Computes what the pipeline gives for events of skipped batches alone, and lets go of it.

    Args:
        target: the pipeline.
        rows: of its quarantine, with the events as they are read now.
        lookups: table -> its rows.
        version_range: the number of the versions in which the events are looked up.
    """
    events = rows.where(F.col("reason") == SKIPPED).drop(*WHY_SET_ASIDE, *OF_BATCH)
    events = events.withColumns({HEARTBEAT: F.lit(False), VERSION_RANGE: F.lit(version_range)})
    reads = target.logical.reads
    several = len(reads) > 1
    sources = [
        events.where(F.col(SOURCE_TABLE) == each.name) if several else events.drop(SOURCE_TABLE) for each in reads
    ]
    Branches(target.logical, lookups).results(sources).write.format("noop").mode("overwrite").save()


def fault_of(definition: Definition, error: BaseException) -> str | None:
    """What Spark says of rows that cannot be computed, values of personal columns masked; None: that is not it."""
    if condition_of(thrown(error)) is None:
        return None
    return Words.about(definition).of(error) or root_cause(error)


@contextmanager
def refusing(plan: LookupPlan) -> Iterator[None]:
    """Within it, events that cannot be computed are a refusal.

    Raises:
        QuarantineError: if one still cannot.
    """
    try:
        yield
    except Exception as error:
        words = fault_of(plan.target.pipeline, error) if plan.found.skipped else None
        if words is None:
            raise
        cut = plan.target.operator.recomputation.unit.why_no_cut is None
        anew = command("rebuild", plan.pipeline) if cut else command("reset", plan.pipeline, "--empty-tables")
        raise QuarantineError(
            f"pipeline `{plan.pipeline}`: events of a batch that was skipped still cannot be computed: {words}. "
            "Nothing was replayed. Once nothing fails at them any more, run the same command again; with another "
            f"definition, compute the table anew: `{anew}`."
        ) from error
