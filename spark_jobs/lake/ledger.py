"""The ledger: what became of every event of a batch, and whether the figures agree.

An entry holds terms, each a name and a count. What must add up is not decided here: the plan of a pipeline states its
equations (`spark_jobs/plan`, docs/ledger.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.formats import Persisted
from spark_jobs.plan.equations import FATES, Equation

WARNING = "warn: "
"""Before the name of a rule in `reasons`: its rows were not set aside."""


class LedgerEntry(Persisted):
    """What one commit of a result table accounts for.

    Attributes:
        kind: what wrote it: a batch of a stream, a slice of a backfill, a repair, the skip of a batch, a bootstrap (the
            history of a new epoch), or a rebuild (the results of a changed definition in place of those before).
        run: which run of it: of a batch, Spark's id of the start that ran it.
        started_ms: when the batch began, in milliseconds since 1970.
        watermark_ms: Spark's watermark W(N) of this batch: windows that end at or before it are closed.
        late_watermark_ms: W(N-1), by which late events are judged.
        grace_ms: allowed lateness; people are shown the published watermark, W + grace.
        reads: table -> the first version of it that was read and the first that was not, as far as whole versions go.
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
            `searched`: rows for bronze that were searched for fields that no column takes, at ingest from JSON: all of
            a small batch, some of a large one; `unknown`: of these, rows with such a field.
        reasons: quarantined rows by reason, and rows that only warn by `warn: <rule>`.
        unknown_fields: some of the fields that no column takes.
        nulls: column -> rows for bronze that have no value in it, at ingest; those without any are left out.
        sources: source -> the offset up to which the batch read, as Spark's log has it.
    """

    kind: Literal["batch", "backfill", "repair", "skip", "bootstrap", "rebuild"] = "batch"
    run: str = ""
    started_ms: int
    watermark_ms: int = 0
    late_watermark_ms: int = 0
    grace_ms: int = 0
    reads: Mapping[str, tuple[int, int]] = {}
    terms: Mapping[str, int] = {}
    reasons: Mapping[str, int] = {}
    unknown_fields: tuple[str, ...] = ()
    nulls: Mapping[str, int] = {}
    sources: Mapping[str, str] = {}

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
    """

    model_config = ConfigDict(frozen=True)

    batches: int = 0
    terms: Mapping[str, int] = {}

    @classmethod
    def of(cls, entries: Iterable[LedgerEntry]) -> Self:
        """Adds up."""
        sums: Counter[str] = Counter()
        batches = 0
        for entry in entries:
            batches += 1
            sums.update(entry.terms)
        return cls(batches=batches, terms=dict(sums))

    def __getitem__(self, term: str) -> int:
        return self.terms.get(term, 0)

    def rest(self, equation: Equation) -> int:
        """What an equation leaves open."""
        return self[equation.whole] - sum(self[part] for part in equation.parts)


def discrepancies(
    entries: Sequence[tuple[int, LedgerEntry]], equations: Iterable[Equation], *, from_the_start: bool = True
) -> tuple[str, ...]:
    """What does not agree in the batches of one epoch, in words; empty where the ledger balances.

    Args:
        entries: batch number and entry, in order of batches.
        equations: of the pipeline's plan.
        from_the_start: whether the first entry is that of the first batch; what is open is known only then.
    """
    problems = []
    expected = 0 if from_the_start or not entries else entries[0][0]
    before_ms = 0 if from_the_start or not entries else entries[0][1].late_watermark_ms
    each = [equation for equation in equations if equation.open is None]
    over_all = [_Open(equation) for equation in equations if equation.open is not None and from_the_start]
    for batch_id, entry in entries:
        if batch_id != expected:
            problems.append(f"batch {batch_id}: expected batch {expected} next; its ledger row is missing")
        elif entry.late_watermark_ms != before_ms:
            problems.append(
                f"batch {batch_id}: judged by watermark {entry.late_watermark_ms}, the batch before had {before_ms}"
            )
        expected, before_ms = batch_id + 1, entry.watermark_ms
        if entry.watermark_ms < entry.late_watermark_ms:
            problems.append(f"batch {batch_id}: watermark {entry.watermark_ms} fell from {entry.late_watermark_ms}")
        if entry["within_grace"] > entry["on_time"]:
            problems.append(f"batch {batch_id}: {entry['within_grace']} within grace of {entry['on_time']} on time")
        for equation in each:
            accounted = sum(entry[part] for part in equation.parts)
            if accounted != entry[equation.whole]:
                problems.append(
                    f"batch {batch_id}: {named(equation.whole)} {entry[equation.whole]} {equation.unit}, "
                    f"accounts for {accounted}"
                )
        held = entry.terms.get("source_rows")
        if held is not None and entry["read"] + entry["heartbeats"] != held:
            problems.append(
                f"batch {batch_id}: read {entry['read'] + entry['heartbeats']} rows, its source has {held} between "
                "its offsets"
            )
        for opened in over_all:
            problems += [f"batch {batch_id}: {problem}" for problem in opened.after(entry)]
    return tuple(problems)


class _Open:
    """What an equation leaves open, batch after batch."""

    def __init__(self, equation: Equation) -> None:
        self._equation = equation
        self._open = 0
        self._least = 0

    def after(self, entry: LedgerEntry) -> Iterable[str]:
        """What is wrong after an entry; what is missing is told once, and again only when more goes missing."""
        unit, in_state = self._equation.unit, entry.terms.get("state_rows")
        self._open += entry[self._equation.whole] - sum(entry[part] for part in self._equation.parts)
        if self._open < self._least:
            yield f"results and late rows hold {-self._open} {unit} more than were read"
            self._least = self._open
        elif self._open >= 0 and self._equation.in_state and in_state is not None:
            if in_state > self._open:
                yield f"{in_state} rows in state for {self._open} open {unit}"
            if in_state == 0 and self._open > 0:
                yield f"{self._open} {unit} are in no result, not late and not in state"


def named(term: str) -> str:
    """A term as a person reads it."""
    return term.replace("_", " ")
