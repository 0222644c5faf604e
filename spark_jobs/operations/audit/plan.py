"""What an audit looks at, and what it has found, as values; made without a JVM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.audit import checks
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.commit_records.revisions import Mode
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.files import describe_missing, missing_files
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.operations.backfill.plan import BackfillPlan, plan_backfill
from spark_jobs.plan import logical
from spark_jobs.recompute.ranges import Range, RangeError
from spark_jobs.recompute.target import BackfillRefusedError, NotComparableError, Target
from spark_jobs.spec import Definition, Pipeline


class Problem(BaseModel):
    """A row that is not as its events say.

    Attributes:
        row: its key, as a person reads it.
        what: what is wrong with it.
    """

    model_config = ConfigDict(frozen=True)

    row: str
    what: str


class Audit(BaseModel):
    """What an audit has found of one pipeline.

    Attributes:
        pipeline: its name.
        table: its result.
        checks: whether each equation of the ledger holds, and the equation with its figures.
        missing: data files that a table's log names and the store does not have, table by table, in words.
        recounted: the range of event time whose rows were recounted; None: none were.
        left_out: why rows were not recounted; None: they were.
        refused: whether they should have been, and cannot.
        rows: that were recounted.
        differing: of these, such as are not as their events say.
        problems: some of them.
        remedy: what to run next; None: nothing is wrong.
        not_compared: columns of these rows that were not, and why.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    table: str
    checks: tuple[tuple[bool, str], ...] = ()
    missing: tuple[str, ...] = ()
    recounted: str | None = None
    left_out: str | None = None
    refused: bool = False
    rows: int = 0
    differing: int = 0
    problems: tuple[Problem, ...] = ()
    remedy: str | None = None
    not_compared: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, as far as it can be known."""
        return all(holds for holds, _ in self.checks) and not (self.missing or self.differing or self.refused)


def look(lake: Lake, definition: Definition) -> Audit:
    """The part of an audit that needs no JVM: the ledger against the tables, and the data files of all of them.

    Raises:
        MissingTableError: if the pipeline has not run here.
    """
    planned, epoch = plan_on(lake, definition), current_epoch(lake, definition.name)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{definition.name}` has not run on {lake.uri} yet: there is nothing to audit. "
            f"Start it: {command('run', definition.name)}"
        )
    if not exists(lake, planned.result.name):
        return _without_result(lake, definition, epoch)
    ledger = epoch_ledger(lake, planned.result.name, definition.name, epoch.number, planned.equations, last=1)
    names = [*(table.name for table in planned.tables), *(table.name for table in planned.reads)]
    missing = tuple(_missing(lake, dict.fromkeys([*names, *(step.table for step in planned.lookups)])))
    return Audit(
        pipeline=definition.name,
        table=planned.result.name,
        checks=() if missing else tuple(checks(lake, definition, epoch.number, ledger)),
        missing=missing,
        left_out="data files are missing" if missing else None,
        remedy="docs/operate/runbook.md#data-file-missing" if missing else None,
    )


def _without_result(lake: Lake, definition: Definition, epoch: Epoch) -> Audit:
    """What is to be said of a pipeline that has begun and has no result: it may be young, or its table is gone."""
    table, batch = definition.sink.table, newest_batch(lake, epoch.folder, "commits")
    found = Audit(pipeline=definition.name, table=table)
    if batch is None:
        return found.model_copy(update={"left_out": "it has begun, and no batch of it has ended yet"})
    gone = f"table {table} is not in the lake, and the checkpoint in {epoch.folder} has written batches up to {batch}"
    return found.model_copy(
        update={
            "missing": (gone,),
            "left_out": "its table is gone",
            "remedy": "docs/operate/runbook.md#data-file-missing",
        }
    )


def _missing(lake: Lake, names: dict[str, None]) -> Iterator[str]:
    for name in names:
        if exists(lake, name):
            opened = open_table(lake, name)
            if found := missing_files(lake, name, opened):
                yield describe_missing(name, opened.version(), found)


def plan_recount(
    lake: Lake, definition: Definition, asked: Range | None, found: Audit
) -> tuple[Target, BackfillPlan] | Audit:
    """What is to be recounted; where nothing can be, the audit says why.

    Args:
        lake: where.
        definition: of the pipeline.
        asked: a range of event time; None: all that is closed.
        found: what `look` has found.
    """
    if found.left_out:
        return found
    planned = logical.build(definition)
    if not planned.can_be_backfilled:
        return found.model_copy(update={"left_out": "its rows cannot be computed again"})
    if _drops_late(definition, planned):
        why = "it drops late events (Late.DROP), and nothing tells which of them the stream has counted"
        return found.model_copy(update={"left_out": why})
    begin, end = (asked.begin, asked.end) if asked else (None, datetime.now(UTC))
    try:
        target, plan = plan_backfill(lake, definition, begin, end, mode=_mode(planned), force=True)
    except (RangeError, NotComparableError) as error:
        return found.model_copy(update={"left_out": str(error)})
    except BackfillRefusedError as error:
        return found.model_copy(update={"left_out": str(error), "refused": True})
    # What the stream has not read yet is in no result, and in no table of late events.
    return target, plan.model_copy(update={"reads": target.reads("as-streamed", None)})


def _mode(planned: logical.LogicalPlan) -> Mode:
    """Which rows the table is to have: the stream's own, where late events cannot be counted after all."""
    operator = planned.operator
    return "as-streamed" if operator is not None and operator.recomputation.no_repair else "corrected"


def _drops_late(definition: Definition, planned: logical.LogicalPlan) -> bool:
    """Whether late events are in no table."""
    return isinstance(definition, Pipeline) and definition.watermark is not None and planned.table("late") is None


@dataclass(frozen=True)
class AuditPlan:
    """What is to be recounted of several pipelines.

    Attributes:
        found: what needs no recount, or can have none.
        recounts: the others: the pipeline, the range that is computed again, and what was found without it.
    """

    found: tuple[Audit, ...]
    recounts: tuple[tuple[Target, BackfillPlan, Audit], ...]
    notices: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the pipelines, with commas."""
        names = (*(each.pipeline for each in self.found), *(each.pipeline for *_, each in self.recounts))
        return ", ".join(names)

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing is recounted; None: something is."""
        return None if self.recounts else "no rows have to be, or can be, recounted"


def plan_audit(lake: Lake, definitions: Sequence[Definition], asked: Range | None) -> AuditPlan:
    """What an audit of pipelines has found without Spark, and what is to be recounted; nothing is written.

    Args:
        lake: where.
        definitions: of the pipelines.
        asked: a range of event time; None: all that is closed.
    """
    found: list[Audit] = []
    recounts: list[tuple[Target, BackfillPlan, Audit]] = []
    for definition in definitions:
        looked = look(lake, definition)
        plan = plan_recount(lake, definition, asked, looked)
        if isinstance(plan, Audit):
            found.append(plan)
        else:
            recounts.append((*plan, looked))
    return AuditPlan(tuple(found), tuple(recounts))
