"""A batch that cannot be computed for what a row holds: its pipeline is halted, and goes on as a person decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.halting import UncomputableError
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.halts import ChoiceRefusedError, Halt, HaltedError
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.tables.opening import exists
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection
from spark_jobs.operations.audit import execute as audit
from spark_jobs.operations.audit.plan import look, plan_recount
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.rebuild import execute as rebuild
from spark_jobs.operations.rebuild.plan import plan_rebuild
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay import lookup as replay
from spark_jobs.operations.replay import lookup_plan as replay_plan
from spark_jobs.operations.resume.plan import plan_resume
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Enrich,
    Join,
    Pipeline,
    Select,
    Session,
    Sink,
    Table,
    Tumbling,
    Watermark,
    Where,
)
from tests.support import lakes

MINUTE = 60_000
START = 1_700_000_040_000
NAME = "shares"
BATCHES = (
    [(1, "a", 1), (2, "b", 2), (3, "a", 3)],
    [(4, "a", 7), (13, "b", 8), (14, "a", 5)],
    [(15, "b", 4), (22, "a", 6)],
)
POISONED = 1
"""The batch with a 7, of which no share can be computed."""
SHARE = "1 / (v - 7)"
READ = {"p": "p", "v": "v", "t": "t"}


class InjectedError(Exception):
    """The failure that a test asks for."""


@dataclass(frozen=True)
class Case:
    """A pipeline that fails at one row.

    Attributes:
        steps: of it.
        select: of its source.
        mode: of its sink.
        condition: what Spark says.
    """

    steps: tuple[object, ...]
    select: dict[str, str] | None = None
    mode: str = "append"
    condition: str = "DIVIDE_BY_ZERO"


def groups(of: str = "share", window: object = Tumbling("5 minutes")) -> Aggregate:
    return Aggregate(window=window, by=("p",), measures={"total": f"sum({of})", "n": "count(*)"})


CASES = {
    "stateless": Case((Select({"share": SHARE}),)),
    "where": Case((Where(f"{SHARE} < 100"), groups("v"))),
    "windows": Case((Select({"share": SHARE}), groups())),
    "measure": Case((groups(SHARE),)),
    "updated": Case((Select({"share": SHARE}), groups()), mode="update"),
    "total": Case((Select({"share": SHARE}), groups(window=None)), mode="update"),
    "first": Case((Select({"share": SHARE}), Deduplicate("p", "v", within="10 minutes"))),
    "gap": Case((groups("v", Session("2 minutes", gap_sql=f"concat(2 + int(0 * {SHARE}), ' minutes')")),)),
    "join": Case(
        (
            Select({"share": SHARE}),
            Join(Table("bronze.paid"), on=("p",), event_time="u", how="left", within="3 minutes"),
        )
    ),
    "source": Case(
        (groups("w"),),
        select={"p": "coalesce(p, 'none')", "w": f"coalesce({SHARE}, 0)", "t": "t"},
    ),
    "time": Case(
        (groups("v"),),
        select={"p": "p", "v": "v", "t": "CAST(CASE WHEN v = 7 THEN 'none' ELSE CAST(t AS STRING) END AS TIMESTAMP)"},
        condition="CAST_INVALID_INPUT",
    ),
}


def pipeline(case: Case) -> Pipeline:
    total = isinstance(case.steps[-1], Aggregate) and case.steps[-1].window is None
    remembers = any(isinstance(step, Aggregate | Deduplicate | Join) for step in case.steps)
    return lakes.one_file_a_batch(
        Pipeline(
            name=NAME,
            source=Table("bronze.sales", select=case.select),
            event_time=None if total else "t",
            watermark=Watermark(delay="1 minute") if remembers and not total else None,
            steps=case.steps,
            sink=Sink("gold.shares", mode=case.mode),
        )
    )


def feed(lake: Lake, definition: Pipeline) -> None:
    columns = {"p": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.sales", columns, "t")
    for batch in BATCHES:
        bronze.append([{"p": p, "v": v, "t": lakes.at(START + m * MINUTE)} for m, p, v in batch])
    fed = [bronze]
    if definition.tables[1:]:
        paid = lakes.Bronze(lake, "bronze.paid", {"p": pa.string(), "w": pa.int64(), "u": lakes.TIMESTAMP}, "u")
        for batch in BATCHES:
            paid.append([{"p": p, "w": v, "u": lakes.at(START + m * MINUTE)} for m, p, v in batch])
        fed.append(paid)
    for each in fed:
        each.heartbeat(START + 1000 * MINUTE)


def ended(
    spark: SparkSession, lake: Lake, definition: Pipeline, crash: tuple[str, int] | None = None
) -> TidemarkError | None:
    """How a run has ended that reads all there is."""

    def reached(point: str, batch_id: int) -> None:
        if (point, batch_id) == crash:
            raise InjectedError(point)

    driver = Driver(spark, lake, (definition,), failpoint=reached)
    return driver.run_until_caught_up(close=False)[definition.name].error


def halted_at(lake: Lake) -> Halt:
    halt = halts.standing(lake, NAME)
    assert halt is not None
    return halt


def counted(*, without: int) -> list[tuple[int, str, int]]:
    """The events that are counted, by plain Python."""
    return [event for number, batch in enumerate(BATCHES) if number != without for event in batch]


def share(v: int) -> float:
    return 1 / (v - 7)


def windows(value: Callable[[int], float]) -> dict[tuple[int, str], tuple[float, int]]:
    """Totals by window of five minutes, by plain Python; the grid begins at 1970."""
    found: dict[tuple[int, str], list[float]] = {}
    for m, p, v in counted(without=POISONED):
        start = (START + m * MINUTE) // (5 * MINUTE) * 5 * MINUTE
        found.setdefault((start, p), []).append(value(v))
    return {key: (round(sum(values), 9), len(values)) for key, values in found.items()}


def results(kind: str, rows: list[dict[str, object]]) -> object:
    """What the table has, in the form of `expected`."""
    match kind:
        case "stateless" | "first":
            return sorted((row["p"], row["v"], row["share"]) for row in rows)
        case "total":
            return {row["p"]: (round(row["total"], 9), row["n"]) for row in rows}
        case "join":
            return sorted((row["p"], row["v"], row["w"]) for row in rows)
        case "gap":
            return sorted((row["p"], row["total"], row["n"]) for row in rows)
    return {(lakes.ms(row["window_start"]), row["p"]): (round(row["total"], 9), row["n"]) for row in rows}


def expected(kind: str) -> object:
    """By plain Python, over the events of the other batches."""
    events = counted(without=POISONED)
    match kind:
        case "stateless" | "first":
            return sorted((p, v, share(v)) for _, p, v in events)
        case "total":
            keys = {p for _, p, _ in events}
            of = {key: [share(v) for _, p, v in events if p == key] for key in keys}
            return {key: (round(sum(values), 9), len(values)) for key, values in of.items()}
        case "join":
            # What was paid in that batch is skipped, too.
            pairs = [(p, v, w) for m, p, v in events for n, q, w in events if p == q and 0 <= n - m <= 3]
            return sorted(pairs)
        case "gap":
            # Sessions of two minutes: of `a` 1 and 3 touch.
            return [("a", 4, 2), ("a", 6, 1), ("b", 2, 1), ("b", 4, 1)]
    return windows(share if kind in ("windows", "measure", "updated", "source") else float)


VARIANTS = {
    # With deaths on the way, and with what an audit, a backfill and a replay make of it.
    "windows": "test_what_was_skipped_is_not_counted_until_the_definition_changes[windows]",
    "source": "time",
    **dict.fromkeys(("where", "measure", "total", "gap", "updated"), "windows"),
    "first": "stateless",
}
"""Kinds -> what stands for them in `make test`: whatever fails in a batch fails it as a whole."""
DEATHS = ("quarantine_committed", "result_committed")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long) if kind in VARIANTS else kind for kind in CASES]
)
def test_a_batch_that_cannot_be_computed_is_skipped_and_the_rest_is_right(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    case = CASES[kind]
    definition = pipeline(case)
    feed(lake, definition)
    error = ended(spark, lake, definition)
    assert isinstance(error, UncomputableError), error
    halt = halted_at(lake)
    assert (halt.batch_id, halt.failed, halt.broken) == (POISONED, case.condition, {})
    halts.decide(lake, NAME, "skip", by="ada")
    for point in DEATHS if kind in ("windows", "updated") else ():
        assert "Injected" in str(ended(spark, lake, definition, (point, POISONED)))
    assert ended(spark, lake, definition) is None

    rows = lakes.rows(lake, "gold.shares")
    found = results(kind, rows)
    assert found == expected(kind)
    lakes.assert_balanced(lake, definition)
    entry = dict(lakes.ledger(lake, definition))[POISONED]
    assert entry.reasons == {"skipped": len(BATCHES[POISONED]) * (2 if kind == "join" else 1)}
    assert entry.decision_id == halts.records(lake, NAME).newest()[1].decision_id  # type: ignore[union-attr]
    aside = lakes.rows(lake, "gold.shares__quarantine")
    assert {row["reason"] for row in aside} == {"skipped"}
    times = Counter((lakes.ms(row["t"]) - START) // MINUTE for row in aside if row["t"] is not None)
    if kind != "time":
        assert times == Counter(m for m, _, _ in BATCHES[POISONED])
    assert halts.standing(lake, NAME) is None


def skipped(spark: SparkSession, lake: Lake, definition: Pipeline, *, dies_at: Sequence[str] = ()) -> None:
    """Runs a pipeline to its end, with the batch that cannot be computed skipped."""
    assert isinstance(ended(spark, lake, definition), UncomputableError)
    halts.decide(lake, NAME, "skip", by="ada")
    for point in dies_at:
        assert "Injected" in str(ended(spark, lake, definition, (point, POISONED)))
    assert ended(spark, lake, definition) is None


def recounted(spark: SparkSession, lake: Lake, definition: Pipeline) -> audit.Audit:
    """What an audit finds that counts all rows again."""
    found = look(lake, definition)
    planned = plan_recount(lake, definition, None, found)
    assert not isinstance(planned, audit.Audit), planned
    return audit.recount(spark, *planned, found)


def test_until_a_decision_nothing_runs_and_a_try_without_a_fix_halts_again(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline(CASES["windows"])
    feed(lake, definition)
    first = ended(spark, lake, definition)
    assert isinstance(first, UncomputableError)
    assert "DIVIDE_BY_ZERO" in first.without_values
    assert "resume shares --skip" in str(first) or "`--skip`" in str(first)
    halt = halted_at(lake)
    assert "Division by zero" in halt.samples[0]
    assert type(ended(spark, lake, definition)) is HaltedError
    assert halted_at(lake) == halt
    with pytest.raises(ChoiceRefusedError, match="--skip"):
        plan_resume(lake, NAME, "quarantine")

    halts.decide(lake, NAME, "resume", by="ada")
    assert isinstance(ended(spark, lake, definition), UncomputableError)
    again = halted_at(lake)
    assert again.since > halt.since
    assert [batch_id for batch_id, _ in lakes.ledger(lake, definition)] == [0]
    assert not exists(lake, "gold.shares__quarantine")


# The other kinds are put together of the same parts; events that were skipped are left out in one place.
@pytest.mark.parametrize(
    "kind", ["windows", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("source", "first"))]
)
def test_what_was_skipped_is_not_counted_until_the_definition_changes(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    definition = pipeline(CASES[kind])
    feed(lake, definition)
    skipped(spark, lake, definition, dies_at=DEATHS if kind == "windows" else ())
    lakes.assert_balanced(lake, definition)
    found = recounted(spark, lake, definition)
    assert found.rows
    assert found.sound, found
    before = results(kind, lakes.rows(lake, "gold.shares"))
    assert before == expected(kind)
    target, plan = plan_backfill(lake, definition, lakes.at(START - 60 * MINUTE), lakes.at(START + 60 * MINUTE))
    assert sum(done.changed.rows for done in backfill.execute(spark, target, plan)) == 0
    with pytest.raises(QuarantineError, match="still cannot be computed"):
        replay.execute(spark, replay_plan.plan_lookup(lake, definition, Selection()), by="ada")
    assert results(kind, lakes.rows(lake, "gold.shares")) == before
    if kind != "windows":
        return
    fixed = definition.model_copy(update={"steps": (Select({"share": "try_divide(1, v - 7)"}), groups())})
    target, planned = plan_rebuild(lake, fixed)
    rebuild.build(spark, target, planned)
    rebuild.swap(spark, target, planned)
    rows = lakes.rows(lake, "gold.shares")
    assert sum(row["n"] for row in rows) == sum(map(len, BATCHES)), "a rebuild reads all events again"


def test_a_fault_of_what_was_counted_before_is_not_skipped_and_says_so(spark: SparkSession, lake: Lake) -> None:
    # Of `a`, 1 + 3 + 7 in the first window: whichever batch closes it fails, with its events and without.
    definition = pipeline(Case((groups("v"), Select({"inverse": "1 / (total - 11)"}))))
    feed(lake, definition)
    assert isinstance(ended(spark, lake, definition), UncomputableError)
    halt = halted_at(lake)
    halts.decide(lake, NAME, "skip", by="ada")
    again = ended(spark, lake, definition)
    assert isinstance(again, UncomputableError)
    assert "fails without its own events, too" in str(again)
    assert halted_at(lake).batch_id == halt.batch_id
    assert [batch_id for batch_id, _ in lakes.ledger(lake, definition)] == [*range(halt.batch_id)]


RATES = pa.schema([("p", pa.string()), ("rate", pa.float64())])


def rates(lake: Lake, **given: float) -> None:
    table = pa.table({"p": list(given), "rate": list(given.values())}, schema=RATES)
    write_deltalake(lake.table_uri("silver.rates"), table, mode="overwrite")


# In closed windows replayed events count as in tests/spark/test_lookup_again.py::
# test_in_closed_windows_replayed_events_count_like_late_events.
@pytest.mark.parametrize("windowed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_once_a_lookup_is_mended_a_replay_brings_the_skipped_events_in(
    spark: SparkSession, lake: Lake, windowed: bool
) -> None:
    steps = (
        Enrich("silver.rates", on=("p",), columns={"rate": "rate"}, missing="null"),
        Select({"share": "v / rate"}),
        *((groups(),) if windowed else ()),
    )
    select = {"p": "lower(upper(p))", "v": "v + 0", "t": "t"}
    definition = pipeline(Case(steps, select=select))
    columns = {"p": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.sales", columns, "t")
    batches = ([(1, "a", 1), (2, "b", 2)], [(3, "z", 7), (4, "a", 3)], [(13, "b", 4)])
    for batch in batches:
        bronze.append([{"p": p, "v": v, "t": lakes.at(START + m * MINUTE)} for m, p, v in batch])
    rates(lake, a=1.0, b=2.0, z=0.0)
    skipped(spark, lake, definition)
    assert {row["v"] for row in lakes.rows(lake, "gold.shares__quarantine")} == {None}, "nothing of it was computed"
    lakes.assert_balanced(lake, definition)

    mended = {"a": 1.0, "b": 2.0, "z": 2.0}
    rates(lake, **mended)
    bronze.heartbeat(START + 1000 * MINUTE)
    assert ended(spark, lake, definition) is None
    done = replay.execute(spark, replay_plan.plan_lookup(lake, definition, Selection()), by="ada")
    assert (done.replayed, done.kept, done.open) == (2, 0, 0)
    assert repair.execute(spark, *plan_repair(lake, definition)).changed.rows
    shares = [((START + m * MINUTE) // (5 * MINUTE), p, v / mended[p]) for batch in batches for m, p, v in batch]
    rows = lakes.rows(lake, "gold.shares")
    if windowed:
        totals: Counter[tuple[int, str]] = Counter()
        for window, p, value in shares:
            totals[window, p] += value  # type: ignore[assignment]
        assert {(lakes.ms(row["window_start"]) // (5 * MINUTE), row["p"]): row["total"] for row in rows} == totals
    else:
        assert sorted((row["p"], row["share"]) for row in rows) == sorted((p, value) for _, p, value in shares)
    lakes.assert_balanced(lake, definition)
    # Whether an audit agrees: tests/spark/test_lookup_again.py::test_without_windows_each_event_is_in_the_result_once
    assert replay_plan.plan_lookup(lake, definition, Selection()).nothing_to_do is not None
