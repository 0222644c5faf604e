"""A batch that breaks a rule which must hold: nothing of it is written until a person decides, then it is, once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.halting import BrokenRuleError, UncomputableError
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.halts import HaltedError
from spark_jobs.lake.tables.quarantine import Selection
from spark_jobs.operations.replay.execute import ReplayRun, begin
from spark_jobs.operations.replay.outcome import ReplayOutcome
from spark_jobs.operations.replay.plan import ReplayRefusedError, plan_replay
from spark_jobs.spec import Between, Files, Ingest, OneOf, Satisfies, Sink
from tests.support import lakes

TIME = "2026-01-01T00:00:00Z"
POINTS = {"quarantine": ("materialised", "result_committed"), "skip": ("quarantine_committed", "processed")}
"""Choice -> where a driver dies that carries it out; the other pairs are those of tests/spark/test_failures.py."""
NO_REFUNDS = Satisfies("no refunds", "amount >= 0", on_failure="fail")
KNOWN = OneOf("currency", ("EUR", "CHF"), on_failure="fail")
IN_BOUNDS = Between("amount", max=100)


class InjectedError(Exception):
    """The failure that a test asks for."""


def an_ingest(landing: Path, *rules: Any, **more: Any) -> Ingest:
    fields = {
        "name": "ingest_sales",
        "source": Files(str(landing), max_files_per_trigger=1, **more.pop("files", {})),
        "columns": {"id": "STRING", "currency": "STRING", "amount": "INT", "card": "STRING", "t": "TIMESTAMP"},
        "event_time": "t",
        "rules": rules,
        "personal": ("card",),
        "sink": Sink("bronze.sales"),
    }
    return Ingest(**(fields | more))


def land(landing: Path, order: int, lines: list[str], suffix: str = "json") -> None:
    landing.mkdir(parents=True, exist_ok=True)
    path = landing / f"{order}.{suffix}"
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (1_700_000_000 + order, 1_700_000_000 + order))


def sale(number: int, amount: int, currency: str = "EUR") -> str:
    return json.dumps({"id": f"s{number}", "currency": currency, "amount": amount, "card": "4711", "t": TIME})


BATCHES = (
    [sale(1, 5), sale(2, 500), sale(3, 7)],
    [sale(4, 5), sale(5, -3), sale(6, 500), sale(7, -9, "XXX"), "no JSON", sale(8, 6)],
    [sale(9, 8)],
)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for order, lines in enumerate(BATCHES):
        land(tmp_path / "landing", order, lines)
    return tmp_path / "landing"


def reason_of(line: str, choice: str) -> str | None:
    """By plain Python, what becomes of a line of the batch that was halted."""
    if choice == "skip":
        return "skipped"
    if line == "no JSON":
        return "unparseable"
    row = json.loads(line)
    if row["amount"] > 100:
        return "between(amount, ..100)"
    return "no refunds" if row["amount"] < 0 and choice == "quarantine" else None


def expected(choice: str) -> tuple[list[str], list[tuple[int, str, str]]]:
    """Ids in bronze, and (batch, reason, text) in the quarantine."""
    good, bad = [], []
    for number, lines in enumerate(BATCHES):
        for line in lines:
            reason = reason_of(line, choice if number == 1 else "resume")
            if reason is None:
                good.append(json.loads(line)["id"])
            else:
                bad.append((number, reason, line))
    return good, sorted(bad)


def found(lake: Lake) -> tuple[list[str], list[tuple[int, str, str]]]:
    bronze = sorted(lakes.rows(lake, "bronze.sales"), key=lambda row: row["_ingest_seq"])
    bad = [(row["_batch_id"], row["reason"], row["raw"]) for row in lakes.rows(lake, "bronze.sales__quarantine")]
    return [row["id"] for row in bronze], sorted(bad)


def run(
    spark: SparkSession, lake: Lake, definition: Ingest, *, failpoint: Callable[[str, int], None] | None = None
) -> None:
    query = IngestQuery(spark, lake, definition, **({"failpoint": failpoint} if failpoint else {}))
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except Exception:
        if query.error is not None:
            raise query.error from None
        raise


def crash(spark: SparkSession, lake: Lake, definition: Ingest, point: str, batch_id: int) -> None:
    def reached(where: str, number: int) -> None:
        if (where, number) == (point, batch_id):
            raise InjectedError(point)

    with pytest.raises(InjectedError):
        run(spark, lake, definition, failpoint=reached)


def assert_balanced(lake: Lake, definition: Ingest, *, read: list[int], written: list[int]) -> None:
    ledger = lakes.ledger(lake, definition)
    assert [row["read"] for _, row in ledger] == read
    assert [row["rows"] for _, row in ledger] == written
    assert [row["quarantined"] for _, row in ledger] == [all_ - good for all_, good in zip(read, written, strict=True)]
    assert [text for holds, text in audit.checks(lake, definition, 1, ledger) if not holds] == []


def test_a_batch_that_breaks_a_rule_halts_the_pipeline_until_a_decision(
    spark: SparkSession, lake: Lake, landing: Path
) -> None:
    strict = an_ingest(landing, NO_REFUNDS, IN_BOUNDS)
    with pytest.raises(
        BrokenRuleError, match="2 rows of batch 1 break no refunds, which halts the pipeline"
    ) as stopped:
        run(spark, lake, strict)
    assert "4711" not in str(stopped.value)
    halt = halts.standing(lake, strict.name)
    assert halt is not None
    assert (halt.epoch, halt.batch_id, halt.broken) == (1, 1, {"no refunds": 2})
    assert halt.samples == ("amount is -3", "amount is -9")
    before = found(lake)
    assert before == (["s1", "s3"], [(0, "between(amount, ..100)", BATCHES[0][1])])

    # No start does anything but say so, not even one with a rule that would hold.
    fixed = an_ingest(landing, Satisfies("no refunds", "amount >= -10", on_failure="fail"), IN_BOUNDS)
    for definition in (strict, fixed):
        outcomes = Driver(spark, lake, (definition,)).run_until_caught_up(close=False)
        error = outcomes[definition.name].error
        assert isinstance(error, HaltedError)
        assert error.exit_code == 1
        assert "is halted since" in str(error)
    assert halts.standing(lake, strict.name) == halt
    assert found(lake) == before

    # Tried again with nothing fixed, it is halted again.
    halts.decide(lake, strict.name, "resume", by="ada")
    with pytest.raises(BrokenRuleError):
        run(spark, lake, strict)
    again = halts.standing(lake, strict.name)
    assert again is not None
    assert again.since > halt.since
    assert found(lake) == before

    halts.decide(lake, strict.name, "resume", by="ada")
    crash(spark, lake, fixed, "quarantine_committed", 1)
    run(spark, lake, fixed)
    assert found(lake) == expected("resume")
    assert_balanced(lake, strict, read=[3, 6, 1], written=[2, 4, 1])


@pytest.mark.parametrize("choice", ["quarantine", "skip"])
def test_a_decision_sets_rows_of_one_batch_aside_once_despite_crashes(
    spark: SparkSession, lake: Lake, landing: Path, choice: halts.Choice
) -> None:
    definition = an_ingest(landing, NO_REFUNDS, IN_BOUNDS)
    with pytest.raises(BrokenRuleError):
        run(spark, lake, definition)
    halts.decide(lake, definition.name, choice, by="ada")
    for point in POINTS[choice]:
        crash(spark, lake, definition, point, 1)
    run(spark, lake, definition)

    assert found(lake) == expected(choice)
    assert_balanced(lake, definition, read=[3, 6, 1], written=[2, 0 if choice == "skip" else 2, 1])
    reasons = dict(lakes.ledger(lake, definition))[1].reasons
    details = {row["raw"]: row["detail"] for row in lakes.rows(lake, "bronze.sales__quarantine")}
    if choice == "quarantine":
        assert reasons == {"between(amount, ..100)": 1, "no refunds": 2, "unparseable": 1}
        assert details[BATCHES[1][1]] == "amount is -3"
    else:
        assert reasons == {"skipped": 6}
        assert [details[line] for line in BATCHES[1]] == [
            None,
            "no refunds: amount is -3",
            "between(amount, ..100): amount is 500",
            "no refunds: amount is -9",
            "unparseable: no JSON row",
            None,
        ]

    # The next batch that breaks the rule halts again.
    land(landing, 3, [sale(10, -1)])
    with pytest.raises(BrokenRuleError, match="1 rows of batch 3 break no refunds"):
        run(spark, lake, definition)


def test_a_second_broken_rule_halts_again_for_a_decision_about_both(
    spark: SparkSession, lake: Lake, landing: Path
) -> None:
    with pytest.raises(BrokenRuleError):
        run(spark, lake, an_ingest(landing, NO_REFUNDS, IN_BOUNDS))
    halts.decide(lake, "ingest_sales", "quarantine", by="ada")
    # Of the two rows that are refunds, one is in a currency that is not known either: it is set aside already.
    land(landing, 1, [*BATCHES[1], sale(11, 1, "YYY")])
    both = an_ingest(landing, NO_REFUNDS, IN_BOUNDS, KNOWN)
    with pytest.raises(BrokenRuleError, match=r"1 rows of batch 1 break one_of\(currency\)"):
        run(spark, lake, both)
    halt = halts.standing(lake, both.name)
    assert halt is not None
    assert halt.broken == {"one_of(currency)": 1, "no refunds": 2}
    halts.decide(lake, both.name, "quarantine", by="ada")
    run(spark, lake, both)
    assert dict(lakes.ledger(lake, both))[1].reasons == {
        "between(amount, ..100)": 1,
        "no refunds": 2,
        "one_of(currency)": 1,
        "unparseable": 1,
    }
    assert_balanced(lake, both, read=[3, 7, 1], written=[2, 2, 1])


def test_a_line_inside_quotes_is_a_row_to_skip_and_a_header_is_none(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    columns = {"id": "STRING", "currency": "STRING", "t": "TIMESTAMP"}
    texts = an_ingest(landing, KNOWN, columns=columns, personal=(), files={"format": "csv"})
    land(landing, 0, ["id,currency,t", f"a,EUR,{TIME}"], "csv")
    land(landing, 1, ["id,currency,t", f"b,EUR,{TIME}", f'"c,XXX,{TIME}', f'"d",XXX,{TIME}'], "csv")
    with pytest.raises(BrokenRuleError, match=r"1 rows of batch 1 break one_of\(currency\)"):
        run(spark, lake, texts)
    halts.decide(lake, texts.name, "skip", by="ada")
    run(spark, lake, texts)
    raws = [row["raw"] for row in lakes.rows(lake, "bronze.sales__quarantine")]
    assert sorted(raws) == sorted([f"b,EUR,{TIME}", f'"c,XXX,{TIME}', f'"d",XXX,{TIME}'])
    assert_balanced(lake, texts, read=[1, 3], written=[1, 0])


def test_a_rule_that_cannot_be_computed_halts_and_is_skipped_unread(
    spark: SparkSession, lake: Lake, landing: Path
) -> None:
    # Of a map, a key that is missing is null; of an array, a place 0 is an error in either mode of Spark's.
    odd = Satisfies("known place", "element_at(array(1, 2, 3), amount - 4) > 0")
    land(landing, 1, [*BATCHES[1], sale(11, 4)])
    definition = an_ingest(landing, odd, IN_BOUNDS)
    outcome = Driver(spark, lake, (definition,)).run_until_caught_up(close=False)[definition.name]
    assert isinstance(outcome.error, UncomputableError), outcome.error
    assert "4711" not in str(outcome.error)
    halt = halts.standing(lake, definition.name)
    assert halt is not None
    assert (halt.batch_id, halt.failed) == (1, "INVALID_INDEX_OF_ZERO")
    # With deaths on the way: test_a_decision_sets_rows_of_one_batch_aside_once_despite_crashes[skip]
    halts.decide(lake, definition.name, "skip", by="ada")
    run(spark, lake, definition)
    aside = [row for row in lakes.rows(lake, "bronze.sales__quarantine") if row["_batch_id"] == 1]
    assert sorted(row["raw"] for row in aside) == sorted([*BATCHES[1], sale(11, 4)])
    assert {row["reason"] for row in aside} == {"skipped"}
    assert dict(lakes.ledger(lake, definition))[1].reasons == {"skipped": 7}
    assert [row["id"] for row in lakes.rows(lake, "bronze.sales") if row["amount"] == 8] == ["s9"]
    lakes.assert_balanced(lake, definition)  # type: ignore[arg-type]

    def replayed(ingest: Ingest) -> ReplayOutcome:
        replay = open_replay(lake, ingest.name) or begin(lake, plan_replay(lake, ingest, Selection()), by="ada")
        return ReplayRun(spark, lake, ingest, replay).execute()

    with pytest.raises(ReplayRefusedError, match="still cannot be computed"):
        replayed(definition)
    mended = an_ingest(landing, Satisfies("known place", "amount < 10"), IN_BOUNDS)
    assert replayed(mended).replayed == {"skipped": 5}, "less the line that is no JSON and the 500"
    lakes.assert_balanced(lake, mended)  # type: ignore[arg-type]
