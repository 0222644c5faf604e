"""The registered ingests take what the simulator emits: each stream's folder, columns, types and faults."""

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest

from spark_jobs.pipelines import registry
from spark_jobs.simulator import FORMATS, STREAM_NAMES, Disorder, Shop, StreamName, simulate_files
from spark_jobs.simulator.streams import ColumnKind
from spark_jobs.spec import Between, Files, Ingest, NotNull, OneOf

TYPES: dict[ColumnKind, str] = {
    "string": "STRING",
    "int": "INT",
    "decimal": "DECIMAL(10, 2)",
    "double": "DOUBLE",
    "timestamp": "TIMESTAMP",
}
IDS = {"sales": "sale_id", "clicks": "click_id", "visits": "visit_id", "payments": "payment_id"} | {
    "orders": "order_id",
    "order_payments": "payment_id",
    "shipments": "shipment_id",
    "ride_requests": "request_id",
    "transfers": "transfer_id",
    "card_payments": "payment_id",
    "request_logs": "request_id",
}
STARTS = datetime(2024, 5, 1, tzinfo=UTC)


def the_ingest(stream: StreamName) -> Ingest:
    found = registry()[f"ingest_{stream}"]
    assert isinstance(found, Ingest)
    return found


def broken_rule(ingest: Ingest, row: dict[str, Any]) -> str | None:
    """The first rule that the row breaks; nulls break `NotNull` only."""
    for rule in ingest.all_rules:
        assert isinstance(rule, NotNull | Between | OneOf)
        value = row[rule.column]
        low = rule.min if isinstance(rule, Between) else None
        high = rule.max if isinstance(rule, Between) else None
        if value is None:
            holds = not isinstance(rule, NotNull)
        else:
            holds = (low is None or value >= low) and (high is None or value <= high)
            holds = holds and (not isinstance(rule, OneOf) or value in rule.values)
        if not holds:
            return rule.name
    return None


def reasons(folder: Path, stream: StreamName, rows: int, **shop: Any) -> Counter[str | None]:
    """What becomes of the first rows of a stream that arrives in order and unspoilt."""
    a_shop = Shop(**{"seed": 7, "start": STARTS, "rate": None, "streams": (stream,), **shop}, disorder=Disorder.none())
    simulate_files(a_shop, out=str(folder), rows=rows)
    ingest = the_ingest(stream)
    return Counter(
        broken_rule(ingest, json.loads(line, parse_float=Decimal))
        for path in sorted((folder / stream).iterdir())
        for line in path.read_text().splitlines()
    )


def test_all_kinds_of_columns_have_a_type():
    assert set(TYPES) == set(get_args(ColumnKind))


@pytest.mark.parametrize("stream", STREAM_NAMES)
class TestEachStream:
    def test_has_an_ingest_with_its_columns(self, stream):
        ingest, rows = the_ingest(stream), FORMATS[stream]
        assert list(ingest.columns.items()) == [(name, TYPES[kind]) for name, kind in rows.columns.items()]
        assert (ingest.event_time, ingest.event_id) == (rows.event_time, IDS.get(stream))
        assert (type(ingest.source), ingest.source.path) == (Files, f"landing/{stream}")
        assert ingest.sink.table == f"bronze.{stream}"

    def test_cannot_do_without_its_key(self, stream):
        assert NotNull(FORMATS[stream].key) in the_ingest(stream).all_rules


@pytest.mark.parametrize("stream", [stream for stream in STREAM_NAMES if stream != "readings"])
def test_sound_rows_break_no_rule(tmp_path, stream):
    assert reasons(tmp_path, stream, 800, product_change_every="1 second", status_change_every="1 minute") == {
        None: 800
    }


def test_what_a_sensor_says_that_has_nothing_to_say_is_set_aside(tmp_path):
    found = reasons(tmp_path, "readings", 3_000)
    assert found[None] > 2_950
    assert set(found) == {
        None,
        "between(temperature, -50..500)",
        "between(vibration, 0..100)",
        "between(pressure, 0..100)",
    }
