"""Events beside a result, late or replayed: which of them a repair counts, and what of a quarantine is left."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.repaired import mark_replayed
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import Selection, counted, samples
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay import asking as replaying
from spark_jobs.pipelines import registry
from spark_jobs.recompute.lookup_versions import refuse_made_anew, version_ranges
from spark_jobs.recompute.target import NotComparableError, Target
from spark_jobs.spec import Enrich, Pipeline
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")
LATER = {"settled_version": pa.int64(), "settled_at": INSTANT}
REPLAYED = {"replayed_batch": pa.int64(), "replayed_at": INSTANT, "changes_from": INSTANT, "changes_upto": INSTANT}
PAYLOAD = {"product_id": pa.string(), "sold_at": INSTANT, "_event_id": pa.string(), "_ingest_seq": pa.int64()}
PLACE = {"_ingest_time": INSTANT, "_epoch": pa.int32(), "_batch_id": pa.int64()}
WINDOWS = pa.list_(pa.struct([("window_start", INSTANT), ("window_end", INSTANT), ("late_by_ms", pa.int64())]))
LOOKUP = Enrich("silver.shops", on=("product_id",), columns={"city": "city"}, missing="quarantine")
LOOKS_UP = a_pipeline(steps=(LOOKUP, *a_pipeline().steps))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return one_batch(a_lake(tmp_path / "lake"), LOOKS_UP)


def one_batch(lake: Lake, definition: Pipeline) -> Lake:
    """A lake on which batch 0 of a pipeline has ended."""
    begin_epoch(lake, definition, 1)
    write(lake, "silver.shops", {"product_id": ["p"], "city": ["Bremen"]})
    events = pa.table({"sold_at": pa.array([NOON], INSTANT), "_ingest_seq": [0]})
    write(lake, "bronze.sales", events)
    source = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":1,"index":-1,"isStartingVersion":false}'
    entry = a_batch(1, sources={f"DeltaSource[{lake.table_uri('bronze.sales')}]": source}, watermark_ms=2**41)
    entry = entry.model_copy(update={"reads": {"silver.shops": (0, 0)}})
    write(lake, "gold.hourly_sales", {"product_id": ["p"]}, stamp=a_stamp(0, ledger=entry))
    return lake


def beside(lake: Lake, role: str, more: dict[str, pa.DataType], *rows: dict[str, Any]) -> None:
    schema = pa.schema([*PAYLOAD.items(), *PLACE.items(), *more.items()])
    values = [
        {
            "product_id": "p",
            "sold_at": NOON,
            "_ingest_time": NOON,
            "_epoch": 1,
            "_event_id": f"e{number}",
            "_ingest_seq": number,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    write(lake, f"gold.hourly_sales__{role}", pa.Table.from_pylist(values, schema=schema))


@pytest.mark.parametrize(("definition", "counted"), [(LOOKS_UP, 1), (a_pipeline(), 2)])
def test_a_repair_counts_the_late_events_of_batches_that_have_ended(
    tmp_path: Path, definition: Pipeline, counted: int
) -> None:
    lake = one_batch(a_lake(tmp_path / "lake"), definition)
    # Batch 1 has written its late event, and has not ended.
    missed = [{"window_start": NOON, "window_end": NOON.replace(hour=13), "late_by_ms": 1}]
    rows = [{"_batch_id": batch, "missed_windows": missed} for batch in (0, 1)]
    beside(lake, "late", {"missed_windows": WINDOWS} | LATER, *rows)
    beside(lake, "quarantine", REPLAYED | LATER)
    # Only its own batch decides in which version an event is looked up. Without a lookup all of bronze counts.
    _, plan = plan_repair(lake, definition)
    assert plan.late == counted


def test_what_was_replayed_waits_for_a_repair_and_is_set_aside_no_more(lake: Lake) -> None:
    beside(lake, "late", {"missed_windows": WINDOWS} | LATER)
    why = {"reason": pa.string(), "detail": pa.string()}
    rows = [{"_batch_id": 0, "reason": "no such key", "detail": f"d{number}"} for number in range(3)]
    beside(lake, "quarantine", why | REPLAYED | LATER, *rows)
    quarantine = "gold.hourly_sales__quarantine"
    marks = pa.table(
        {
            "_epoch": pa.array([1, 1], pa.int32()),
            "_batch_id": [0, 0],
            "_event_id": ["e0", "e2"],
            "_ingest_seq": [0, 2],
            "replayed_batch": [0, 0],
            "changes_from": pa.array([NOON, NOON], INSTANT),
            "changes_upto": pa.array([NOON, NOON], INSTANT),
            "settled_version": pa.array([None, None], pa.int64()),
        }
    )
    assert mark_replayed(lake, quarantine, marks) == 2
    # Again, as by another replay of the same rows: each once, and the first mark stays.
    newest = marks.set_column(4, "replayed_batch", pa.array([7, 7], pa.int64()))
    assert mark_replayed(lake, quarantine, newest) == 0
    found = {
        row["_event_id"]: row["replayed_batch"] for row in open_table(lake, quarantine).to_pyarrow_table().to_pylist()
    }
    assert found == {"e0": 0, "e1": None, "e2": 0}

    (left,) = counted(lake, LOOKS_UP, Selection())
    assert (left.reason, left.rows) == ("no such key", 1)
    ((text,),) = samples(lake, LOOKS_UP, Selection(), 3).values()
    assert "detail=d1" in text
    assert "replayed" not in text
    _, plan = plan_repair(lake, LOOKS_UP)
    assert plan.late == 2
    assert plan.times == ((round(NOON.timestamp()) * 10**6, round(NOON.timestamp() + 3600) * 10**6),)


def test_a_quarantine_from_before_there_were_replays_has_none(lake: Lake) -> None:
    beside(lake, "late", {"missed_windows": WINDOWS} | LATER)
    beside(
        lake, "quarantine", {"reason": pa.string(), "detail": pa.string()}, {"_batch_id": 0, "reason": "no such key"}
    )
    _, plan = plan_repair(lake, LOOKS_UP)
    assert plan.nothing_to_do is not None
    assert [each.rows for each in counted(lake, LOOKS_UP, Selection())] == [1]


def test_airflow_sees_what_would_be_looked_up_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "registry", lambda: {**registry(), LOOKS_UP.name: LOOKS_UP})
    rows = [{"_batch_id": batch, "reason": "no such key"} for batch in (0, 0, 1)]
    beside(lake, "late", {"missed_windows": WINDOWS} | LATER)
    beside(lake, "quarantine", {"reason": pa.string(), "detail": pa.string()} | REPLAYED | LATER, *rows)
    found = replaying.look(lake, LOOKS_UP.name, Selection())
    assert found.reasons == {"no such key": 2}
    assert (
        found.lines[0]
        == "replay of hourly_sales: 2 rows of its quarantine, version 0, looked up in silver.shops version 0"
    )
    assert replaying.look(lake, LOOKS_UP.name, Selection(since_us=2**52)).reasons == {}


def looked_up_in(lake: Lake, batch: int, version: int, table_id: str | None) -> None:
    """A further batch that has ended."""
    entry = a_batch(0, watermark_ms=2**41, sources={f"DeltaSource[{lake.table_uri('bronze.sales')}]": ""})
    noted = {"reads": {"silver.shops": (version, version)}, "table_ids": {"silver.shops": table_id} if table_id else {}}
    stamp = a_stamp(batch, ledger=entry.model_copy(update=noted))
    write(lake, "gold.hourly_sales", {"product_id": ["p"]}, stamp=stamp)


def test_versions_of_a_lookup_that_was_made_anew_are_other_ones(lake: Lake) -> None:
    first = str(open_table(lake, "silver.shops").metadata().id)
    # An entry from before ids were noted is of the same table as the next one.
    looked_up_in(lake, 1, 0, first)
    target = Target(lake, LOOKS_UP)
    (before,) = version_ranges(target)
    assert (before.versions, before.ids, before.last_batch) == ({"silver.shops": 0}, {"silver.shops": first}, 1)
    refuse_made_anew(target, [before], [0], "Nothing was written.")

    # The same rows, the same version number.
    rows = open_table(lake, "silver.shops").to_pyarrow_table()
    shutil.rmtree(lake.table_path("silver.shops"))
    write(lake, "silver.shops", rows)
    second = str(open_table(lake, "silver.shops").metadata().id)
    looked_up_in(lake, 2, 0, second)
    target = Target(lake, LOOKS_UP)
    known = version_ranges(target)
    assert [(version_range.versions["silver.shops"], version_range.ids["silver.shops"]) for version_range in known] == [
        (0, first),
        (0, second),
    ]
    refuse_made_anew(target, known, [1], "Nothing was written.")
    for asked in ([0], [0, 1]):
        with pytest.raises(NotComparableError) as refused:
            refuse_made_anew(target, known, asked, "Nothing was written.")
        assert "silver.shops, in which events were looked up, was removed and made anew since" in str(refused.value)
        assert "Nothing was written. `tidemark reset hourly_sales --empty-tables`" in str(refused.value)
