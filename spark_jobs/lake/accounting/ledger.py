"""The ledger: what became of every event of a batch, and whether the figures agree.

An entry holds terms, each a name and a count. What must add up is not decided here: the plan of a pipeline states its
equations (`spark_jobs/plan`, docs/concepts/ledger.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.plan.equations import FATES, Equation

WARNING = "warn: "
"""Before the name of a rule in `reasons`: its rows were not set aside."""


class LedgerEntry(PersistedValue):
    """What one commit of a result table accounts for.

    Attributes:
        kind: what wrote it: a batch of a stream, a slice of a backfill, a repair, the skip of a batch, a bootstrap (the
            history of a new epoch), a rebuild (the results of a changed definition in place of those before), a replay
            (rows of the quarantine that went to bronze after all), a restore (the batches before it count, those that
            it took back do not; it has no terms), or a rescale (a batch that only divides the state anew: it repeats
            what the batch before it had read, and reads nothing).
        run: which run of it: of a batch, Spark's id of the start that ran it.
        started_ms: when the batch began, in milliseconds since 1970.
        watermark_ms: Spark's watermark W(N) of this batch: windows that end at or before it are closed.
        late_watermark_ms: W(N-1), by which late events are judged.
        grace_ms: allowed lateness; people are shown the published watermark, W + grace.
        reads: table -> the first version of it that was read and the first that was not, as far as whole versions go.
        table_ids: lookup table -> the id of the Delta table whose version was read; none in entries from before there
            were any: it is that of the table as it is.
        terms: name -> count. Of every pipeline: `read` (events that the batch read; heartbeats are none), what became
            of them (`plan.equations.FATES`), `rows` (of the result, that it wrote) and `heartbeats`. Beside them:
            `within_grace`: of `on_time`, events of which a window had passed the published watermark;
            `pairs`: (event, window) pairs of the events that passed, without windows these events; `pairs_late`: of
            these, the late ones; `pairs_result`: the sum of `__events` of the rows that became final, before `TopN`
            cuts; `pairs_withheld`: of the rows that a `Where` took out of the result;
            `state_rows`: rows that Spark keeps in its state after this batch; of a join, `left_state_rows` and
            `right_state_rows` tell its sides apart, where the state lies in the driver's own process;
            `source_rows`: rows, heartbeats included, that the logs of the source tables hold between the batch's first
            and last offset; not there where the source is no table, or another program left no statistics in it;
            `searched`: rows for bronze that were searched for fields that no column takes, at ingest: of JSON all of
            a small batch, some of a large one; of CSV with a header all; of Parquet those of one file of the batch;
            `unknown`: of these, rows with such a field.
        reasons: quarantined rows by reason, and rows that only warn by `warn: <rule>`.
        unknown_fields: some of the fields that no column takes.
        nulls: column -> rows for bronze that have no value in it, at ingest; those without any are left out.
        sources: source -> the offset up to which the batch read, as Spark's log has it.
        decision_id: of the row in `ops.decisions` by which rows of the batch, or all of them, were set aside; None:
            nobody has decided that.
    """

    kind: Literal["batch", "backfill", "repair", "skip", "bootstrap", "rebuild", "replay", "restore", "rescale"] = (
        "batch"
    )
    run: str = ""
    started_ms: int
    watermark_ms: int = 0
    late_watermark_ms: int = 0
    grace_ms: int = 0
    reads: Mapping[str, tuple[int, int]] = {}
    table_ids: Mapping[str, str] = {}
    terms: Mapping[str, int] = {}
    reasons: Mapping[str, int] = {}
    unknown_fields: tuple[str, ...] = ()
    nulls: Mapping[str, int] = {}
    sources: Mapping[str, str] = {}
    decision_id: str | None = None

    def __getitem__(self, term: str) -> int:
        return self.terms.get(term, 0)

    def with_terms(self, **terms: int | None) -> Self:
        """The same with more terms; those that are None are not known."""
        known = {name: count for name, count in terms.items() if count is not None}
        return self.model_copy(update={"terms": {**self.terms, **known}})

    @property
    def late_events(self) -> int:
        """Events that were late, for one window or more."""
        return self["late"] + self["partly_late"]

    @property
    def accounted(self) -> int:
        """Events whose end is known; equal to `read` where the batch balances."""
        return sum(self[fate] for fate in FATES)

    @property
    def balanced(self) -> bool:
        """Whether the equation in events holds."""
        return self.accounted == self["read"]


class Totals(BaseModel):
    """The sums over the entries of one epoch.

    Attributes:
        batches: entries.
        terms: name -> sum.
        reasons: as in an entry, summed up.
        nulls: as in an entry, summed up.
        unknown_fields: all that an entry has.
    """

    model_config = ConfigDict(frozen=True)

    batches: int = 0
    terms: Mapping[str, int] = {}
    reasons: Mapping[str, int] = {}
    nulls: Mapping[str, int] = {}
    unknown_fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[LedgerEntry]) -> Self:
        """The sums of the terms of several ledger entries."""
        return cls().plus(entries)

    def plus(self, entries: Iterable[LedgerEntry]) -> Self:
        """The sums with further entries."""
        terms, reasons, nulls = Counter(self.terms), Counter(self.reasons), Counter(self.nulls)
        fields, batches = set(self.unknown_fields), self.batches
        for entry in entries:
            batches += entry.kind != "restore"
            terms.update(entry.terms)
            reasons.update(entry.reasons)
            nulls.update(entry.nulls)
            fields.update(entry.unknown_fields)
        return self.model_copy(
            update={
                "batches": batches,
                "terms": dict(terms),
                "reasons": dict(reasons),
                "nulls": dict(nulls),
                "unknown_fields": tuple(sorted(fields)),
            }
        )

    def __getitem__(self, term: str) -> int:
        return self.terms.get(term, 0)

    def rest(self, equation: Equation) -> int:
        """What an equation leaves open."""
        return self[equation.whole] - sum(self[part] for part in equation.parts)


_SHOWN = 100
"""So many things that do not agree are kept in words; more are counted."""


class LedgerSums(PersistedValue):
    """The ledger of one epoch up to a batch: its sums, and what does not agree.

    It is kept from one look to the next, so that a look costs what is new.

    Attributes:
        totals: the sums.
        next_batch: the batch that is expected next.
        watermark_ms: of the newest batch.
        open: equation, in words -> what it left open after the newest batch, and the least that it ever left.
        problems: what does not agree, in words, the first of them.
        more_problems: how many further ones there are.
    """

    totals: Totals = Totals()
    next_batch: int = 0
    watermark_ms: int = 0
    open: Mapping[str, tuple[int, int]] = {}
    problems: tuple[str, ...] = ()
    more_problems: int = 0

    def plus(self, entries: Sequence[tuple[int, LedgerEntry]], equations: Iterable[Equation]) -> Self:
        """The same with further entries, in order of batches.

        Args:
            entries: batch number and entry.
            equations: of the pipeline's plan.
        """
        if not entries:
            return self
        each = [equation for equation in equations if equation.open is None]
        over_all = [_Open(e, *self.open.get(e.describe(), (0, 0))) for e in equations if e.open is not None]
        problems = list(self.problems)
        expected, before_ms = self.next_batch, self.watermark_ms
        for batch_id, entry in entries:
            problems += _of_batch(batch_id, entry, expected, before_ms, each)
            for opened in over_all:
                problems += [f"batch {batch_id}: {problem}" for problem in opened.after(entry)]
            expected, before_ms = batch_id + 1, entry.watermark_ms
        return self.model_copy(
            update={
                "totals": self.totals.plus(entry for _, entry in entries),
                "next_batch": expected,
                "watermark_ms": before_ms,
                "open": {opened.equation.describe(): (opened.open, opened.least) for opened in over_all},
                "problems": tuple(problems[:_SHOWN]),
                "more_problems": self.more_problems + len(problems[_SHOWN:]),
            }
        )

    @property
    def discrepancies(self) -> tuple[str, ...]:
        """What does not agree, in words; empty where the ledger balances."""
        more = (f"and {self.more_problems:,} more",) if self.more_problems else ()
        return (*self.problems, *more)


def discrepancies(
    entries: Sequence[tuple[int, LedgerEntry]], equations: Iterable[Equation], *, from_the_start: bool = True
) -> tuple[str, ...]:
    """What does not agree in the batches of one epoch, in words; empty where the ledger balances.

    Args:
        entries: batch number and entry, in order of batches.
        equations: of the pipeline's plan.
        from_the_start: whether the first entry is that of the first batch; what is open is known only then.
    """
    if from_the_start or not entries:
        return LedgerSums().plus(entries, tuple(equations)).discrepancies
    first, entry = entries[0]
    before = LedgerSums(next_batch=first, watermark_ms=entry.late_watermark_ms)
    return before.plus(entries, tuple(each for each in equations if each.open is None)).discrepancies


def _of_batch(
    batch_id: int, entry: LedgerEntry, expected: int, before_ms: int, equations: Iterable[Equation]
) -> Iterable[str]:
    """What does not agree in one batch."""
    if entry.kind == "restore":
        return  # the next batch goes on after it
    if batch_id != expected:
        yield f"batch {batch_id}: expected batch {expected} next; its ledger row is missing"
    elif entry.late_watermark_ms != before_ms:
        yield f"batch {batch_id}: judged by watermark {entry.late_watermark_ms}, the batch before had {before_ms}"
    if entry.watermark_ms < entry.late_watermark_ms:
        yield f"batch {batch_id}: watermark {entry.watermark_ms} fell from {entry.late_watermark_ms}"
    if entry["within_grace"] > entry["on_time"]:
        yield f"batch {batch_id}: {entry['within_grace']} within grace of {entry['on_time']} on time"
    for equation in equations:
        accounted = sum(entry[part] for part in equation.parts)
        if accounted != entry[equation.whole]:
            yield (
                f"batch {batch_id}: {named(equation.whole)} {entry[equation.whole]} {equation.unit}, "
                f"accounts for {accounted}"
            )
    held = entry.terms.get("source_rows")
    if held is not None and entry["read"] + entry["heartbeats"] != held:
        yield (
            f"batch {batch_id}: read {entry['read'] + entry['heartbeats']} rows, its source has {held} between "
            "its offsets"
        )


class _Open:
    """What an equation leaves open, batch after batch."""

    def __init__(self, equation: Equation, open_now: int = 0, least: int = 0) -> None:
        self.equation = equation
        self.open = open_now
        self.least = least

    def after(self, entry: LedgerEntry) -> Iterable[str]:
        """What is wrong after an entry; what is missing is told once, and again only when more goes missing."""
        unit, in_state = self.equation.unit, entry.terms.get("state_rows")
        self.open += entry[self.equation.whole] - sum(entry[part] for part in self.equation.parts)
        if self.open < self.least:
            yield f"results and late rows hold {-self.open} {unit} more than were read"
            self.least = self.open
        elif self.open >= 0 and self.equation.in_state and in_state is not None:
            if in_state > self.open:
                yield f"{in_state} rows in state for {self.open} open {unit}"
            if in_state == 0 and self.open > 0:
                yield f"{self.open} {unit} are in no result, not late and not in state"


def named(term: str) -> str:
    """A term as a person reads it."""
    return term.replace("_", " ")
