"""What `tidemark.testing` gives to the tests of a pipeline file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from spark_jobs.spec import DefinitionError
from spark_jobs.testing import pipelines
from tidemark import Pipeline, Running, Sink, Table, Watermark
from tidemark.testing import PipelineTest

AT = datetime(2026, 1, 1, tzinfo=UTC)
BALANCES = Pipeline(
    name="balances",
    source=Table("bronze.transfers"),
    event_time="booked_at",
    watermark=Watermark(delay="5 minutes"),
    steps=(Running(by=("account",), measures={"balance": "sum(amount)"}),),
    sink=Sink("gold.balances"),
)
COLUMNS = {"bronze.transfers": {"account": "STRING", "amount": "DECIMAL(10, 2)", "booked_at": "TIMESTAMP"}}


def transfer(minute: int, amount: int) -> dict[str, object]:
    return {"account": "a", "amount": Decimal(amount), "booked_at": AT + timedelta(minutes=minute)}


def test_a_pipeline_is_tested_batch_by_batch(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_SESSIONS", [spark])
    test = PipelineTest(BALANCES, COLUMNS)
    test.events(transfer(3, -50), transfer(1, 250)).run()
    assert test.rows == []
    assert {(row["account"], row["amount"]) for row in test.state["waiting"]} == {
        ("a", Decimal(-50)),
        ("a", Decimal(250)),
    }
    assert test.state["kept"] == []
    test.watermark(AT + timedelta(minutes=2)).events(transfer(2, 7), transfer(4, 200)).run()
    assert [row["balance"] for row in test.rows] == [Decimal(250)]
    assert [event["amount"] for event in test.late] == [Decimal(7)]
    assert [row["balance"] for row in test.state["kept"]] == [Decimal(250)]
    test.watermark(AT + timedelta(minutes=9)).run()
    assert sorted(row["balance"] for row in test.rows) == [Decimal(200), Decimal(250), Decimal(400)]
    assert {name: test.ledger[name] for name in ("read", "on_time", "late", "rows")} == {
        "read": 4,
        "on_time": 3,
        "late": 1,
        "rows": 3,
    }
    test.assert_balanced()


def test_columns_that_a_table_has_not_are_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_SESSIONS", [spark])
    with pytest.raises(DefinitionError, match=r"got none of \['bronze.transfers'\]"):
        PipelineTest(BALANCES, {"bronze.others": {}})
    with pytest.raises(DefinitionError, match=r"\['amout'\] are no columns of bronze.transfers"):
        PipelineTest(BALANCES, COLUMNS).events({"amout": 1})
