"""What a definition means: what it reads, what it writes, what must add up. A pure function of the definition."""

from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.equations import BY_FATE, Equation, Invariant
from spark_jobs.plan.operators import AsStreamed, Operator, Side, operator_of, setting_aside
from spark_jobs.plan.tables import TableRef, beside
from spark_jobs.spec import Definition, Enrich, Ingest, Pipeline, Table
from spark_jobs.spec.durations import duration_ms


@dataclass(frozen=True)
class LogicalPlan:
    """What a definition means.

    Attributes:
        definition: that it was made of.
        sides: what it reads, by the order in which events come.
        tables: what it writes; the result last.
        equations: what the ledger must satisfy.
        invariants: what the tables must hold, by the ledger.
        grace_ms: how much longer than the delay an event is accepted.
        operator: its stateful step; None for an ingest.
    """

    definition: Definition
    sides: tuple[Side, ...]
    tables: tuple[TableRef, ...]
    equations: tuple[Equation, ...]
    invariants: tuple[Invariant, ...]
    grace_ms: int = 0
    operator: Operator | None = None

    @property
    def lookups(self) -> tuple[Enrich, ...]:
        """The steps that look columns up in a table."""
        steps = (step for side in self.sides for step in side.steps)
        return tuple(step for step in steps if isinstance(step, Enrich))

    @property
    def as_streamed(self) -> AsStreamed | None:
        """How a batch gives the rows that the stream wrote; None for an ingest."""
        return self.operator.recomputation.as_streamed if self.operator else None

    @property
    def can_be_backfilled(self) -> bool:
        """Whether a backfill of a range of event time, and a repair, are built for it."""
        operator = self.operator
        return (
            operator is not None
            and operator.recomputation.impossible is None
            and bool(operator.recomputation.placed_by)
        )

    @property
    def can_count_late_events(self) -> bool:
        """Whether a backfill or a repair can count late events in its results after all."""
        operator = self.operator
        return self.can_be_backfilled and operator is not None and operator.recomputation.no_repair is None

    @property
    def reads(self) -> tuple[Table, ...]:
        """The source tables, in the order by which a row tells where it comes from."""
        return tuple(table for side in self.sides for table in side.tables)

    def side_of(self, table: str) -> Side:
        """The side that reads a table; none is read twice."""
        return next(side for side in self.sides if table in {each.name for each in side.tables})

    @property
    def names_sources(self) -> bool:
        """Whether a row beside the result says of which table its event is (`SOURCE_TABLE`): there are several."""
        return len(self.reads) > 1

    @property
    def result(self) -> TableRef:
        """The table that has the ledger in its history."""
        return self.tables[-1]

    @property
    def horizon(self) -> timedelta:
        """How far past the newest event the watermark must move until every result is final."""
        return self.operator.horizon if self.operator else timedelta(0)

    def table(self, role: str) -> TableRef | None:
        """The table with a role; None: it writes none."""
        return next((table for table in self.tables if table.role == role), None)


def build(definition: Definition) -> LogicalPlan:
    """The plan of a definition."""
    return _ingest(definition) if isinstance(definition, Ingest) else _pipeline(definition)


def with_quarantine(plan: LogicalPlan) -> LogicalPlan:
    """The plan of a pipeline of which a batch was skipped: beside its result are the events of that batch."""
    return plan if plan.operator is None else _of(plan.operator.pipeline, setting_aside(plan.operator))


def _pipeline(pipeline: Pipeline) -> LogicalPlan:
    return _of(pipeline, operator_of(pipeline))


def _of(pipeline: Pipeline, operator: Operator) -> LogicalPlan:
    watermark = pipeline.watermark
    return LogicalPlan(
        definition=pipeline,
        sides=operator.sides,
        tables=operator.output.tables,
        equations=operator.accounting.equations,
        invariants=operator.accounting.invariants,
        grace_ms=duration_ms(watermark.grace) if watermark else 0,
        operator=operator,
    )


def _ingest(ingest: Ingest) -> LogicalPlan:
    bronze = TableRef(ingest.sink.table, "result", statistics=(ingest.event_time, "_ingest_seq"))
    quarantine = TableRef(beside(ingest.sink.table, "quarantine"), "quarantine")
    return LogicalPlan(
        definition=ingest,
        sides=(),
        tables=(quarantine, bronze),
        equations=(BY_FATE,),
        invariants=(
            # A replay takes rows out of the one and adds them to the other.
            Invariant(
                "quarantine",
                quarantine,
                "count(*)",
                ("quarantined",),
                "set aside",
                minus=("released",),
                of_epoch=True,
            ),
            Invariant(
                "bronze",
                bronze,
                "count(*)",
                ("rows", "replayed"),
                "events written",
                where="NOT _heartbeat",
                whole_table=True,
            ),
        ),
    )
