"""An event is known by its source table and its number there, in whatever table it stands."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.commits.tables import create_table
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.repaired import late_rows, mark_repaired, mark_replayed, those_of
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.checkpoints.lineage import Lineage
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.plan import logical
from spark_jobs.plan.identity import event_columns, same_event
from spark_jobs.spec import Deduplicate, Join, Pipeline, Sink, Table, Union, Where
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write

NOON, ONE = datetime(2026, 11, 24, 12, tzinfo=UTC), datetime(2026, 11, 24, 13, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")
WINDOWS = pa.list_(pa.struct([("window_start", INSTANT), ("window_end", INSTANT), ("late_by_ms", pa.int64())]))
LATE = "gold.hourly_sales__late"
COLUMNS = {
    "product_id": pa.string(),
    "sold_at": INSTANT,
    "_event_id": pa.string(),
    "_ingest_seq": pa.int64(),
    "_ingest_time": INSTANT,
    "_epoch": pa.int32(),
    "_batch_id": pa.int64(),
    "missed_windows": WINDOWS,
    "settled_version": pa.int64(),
    "settled_at": INSTANT,
}
TABLE, SIDE = {"_source_table": pa.string()}, {"_side": pa.string()}
SELECT = {"product_id": "product_id", "quantity": "quantity", "sold_at": "sold_at"}
UNION = Union(Table("bronze.sales", select=SELECT), Table("bronze.more", select=SELECT))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def late(lake: Lake, more: dict[str, pa.DataType], *rows: dict[str, Any], table: str = LATE) -> None:
    """Late events of one batch that have one id and one number."""
    missed = [{"window_start": NOON, "window_end": ONE, "late_by_ms": 1}]
    same = {"_event_id": "1", "_ingest_seq": 1, "_epoch": 1, "_batch_id": 3, "missed_windows": missed}
    values = [{"sold_at": NOON, "_ingest_time": NOON, **same, **row} for row in rows]
    write(lake, table, pa.Table.from_pylist(values, schema=pa.schema([*COLUMNS.items(), *more.items()])))


def events(lake: Lake, **options: Any) -> pa.Table:
    return late_rows(lake, LATE, Lineage((1,)), times=["sold_at"], in_windows=True, **options)[1]


def repaired_in(lake: Lake, name: str) -> dict[str | None, int | None]:
    return {row[name]: row["settled_version"] for row in open_table(lake, LATE).to_pyarrow_table().to_pylist()}


class TestMarking:
    def test_of_two_tables_events_with_one_number_each_is_marked_alone(self, lake: Lake) -> None:
        late(lake, TABLE, {"_source_table": "bronze.sales"}, {"_source_table": "bronze.more"})
        found = events(lake)
        mark_repaired(lake, LATE, found.filter(pc.equal(found["_source_table"], "bronze.more")), 7)
        assert repaired_in(lake, "_source_table") == {"bronze.sales": None, "bronze.more": 7}
        mark_repaired(lake, LATE, found, 8)
        assert repaired_in(lake, "_source_table") == {"bronze.sales": 8, "bronze.more": 8}

    def test_of_two_sides_whose_rows_name_no_table_each_is_marked_alone(self, lake: Lake) -> None:
        late(lake, SIDE, {"_side": "left"}, {"_side": "right"})
        found = events(lake)
        mark_repaired(lake, LATE, found.filter(pc.equal(found["_side"], "left")), 7)
        assert repaired_in(lake, "_side") == {"left": 7, "right": None}

    def test_rows_that_nothing_tells_apart_are_marked_together(self, lake: Lake) -> None:
        late(lake, {}, {"product_id": "a"}, {"product_id": "b"})
        mark_repaired(lake, LATE, events(lake), 7)
        assert repaired_in(lake, "product_id") == {"a": 7, "b": 7}

    def test_an_event_without_an_id_is_marked(self, lake: Lake) -> None:
        late(lake, TABLE, {"_event_id": None, "_source_table": "bronze.sales"}, {"_source_table": "bronze.more"})
        found = events(lake)
        mark_repaired(lake, LATE, found.filter(pc.is_null(found["_event_id"])), 7)
        assert repaired_in(lake, "_source_table") == {"bronze.sales": 7, "bronze.more": None}

    def test_what_is_undone_is_undone_of_its_table_alone(self, lake: Lake) -> None:
        rows = [{"_source_table": table, "settled_version": 5} for table in ("bronze.sales", "bronze.more")]
        late(lake, TABLE, *rows)
        found = events(lake)
        mark_repaired(lake, LATE, found.filter(pc.equal(found["_source_table"], "bronze.sales")), None)
        assert repaired_in(lake, "_source_table") == {"bronze.sales": None, "bronze.more": 5}

    @pytest.mark.parametrize("column", ["_source_table", "_side", "_event_id"])
    def test_events_are_found_again_by_what_tells_them_apart(self, lake: Lake, column: str) -> None:
        late(lake, TABLE | SIDE, {column: "x"}, {column: "y"}, {column: None})
        found = events(lake)
        for value in ("x", "y", None):
            mine = [row == value for row in found[column].to_pylist()]
            assert those_of(found, found.filter(pa.array(mine)))[column].to_pylist() == [value]

    def test_a_replay_marks_the_event_of_its_table_alone(self, lake: Lake) -> None:
        quarantine = "gold.hourly_sales__quarantine"
        replay = {"replayed_batch": pa.int64(), "replayed_at": INSTANT}
        changes = {"changes_from": INSTANT, "changes_upto": INSTANT}
        both = [{"_source_table": table} for table in ("bronze.sales", "bronze.more")]
        late(lake, TABLE | replay | changes, *both, table=quarantine)
        marks = {"_epoch": pa.array([1], pa.int32()), "_batch_id": [3], "_ingest_seq": [1], "_event_id": ["1"]}
        marks |= {"_source_table": ["bronze.more"], "_side": pa.array([None], pa.string()), "replayed_batch": [4]}
        marks |= {"settled_version": pa.array([None], pa.int64())}
        assert mark_replayed(lake, quarantine, pa.table(marks)) == 1
        rows = open_table(lake, quarantine).to_pyarrow_table().to_pylist()
        assert {row["_source_table"]: row["replayed_batch"] for row in rows} == {"bronze.sales": None, "bronze.more": 4}


def streamed(lake: Lake, definition: Pipeline, tables: tuple[str, ...], **terms: int) -> list[tuple[int, Any]]:
    """Batch 0 of a pipeline has ended; what it has written is there."""
    begin_epoch(lake, definition, 1)
    for table in tables:
        write(lake, table, pa.table({"sold_at": pa.array([NOON], INSTANT), "_ingest_seq": [0]}))
    offset = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":1,"index":-1,"isStartingVersion":false}'
    sources = {f"DeltaSource[{lake.table_uri(table)}]": offset for table in tables}
    entry = a_batch(0, sources=sources, watermark_ms=2**41, **terms)
    write(lake, definition.sink.table, {"product_id": ["p"]}, stamp=a_stamp(0, pipeline=definition.name, ledger=entry))
    return [(0, entry)]


def test_a_repair_plans_for_both_of_two_tables_events_with_one_number(lake: Lake) -> None:
    definition = a_pipeline(source=UNION)
    streamed(lake, definition, ("bronze.sales", "bronze.more"))
    late(lake, TABLE, *({"_source_table": table} for table in ("bronze.sales", "bronze.more")))
    target, plan = plan_repair(lake, definition)
    assert plan.late == 2
    known = target.late_of(plan)
    assert known is not None
    target.mark_repaired(known.unrepaired, 1)
    assert repaired_in(lake, "_source_table") == {"bronze.sales": 1, "bronze.more": 1}


JOIN = Join(
    Table("bronze.paid", select={"product_id": "product_id", "paid_at": "paid_at"}),
    on=("product_id",),
    event_time="paid_at",
    within="1 hour",
)


@pytest.mark.parametrize("named", [True, False], ids=["named", "of an earlier version"])
def test_a_join_over_several_tables_counts_the_events_of_each(lake: Lake, named: bool) -> None:
    definition = a_pipeline(source=UNION, steps=(JOIN,), sink=Sink("gold.paid"))
    begin_epoch(lake, definition, 1)
    entry = a_batch(4, pairs=None, pairs_result=None, left_on_time=2, right_on_time=1, rows=3)
    # Two events of one number in two tables were in time, and each has a match; so has a late one, by a repair.
    left = [("bronze.sales", 1, NOON), ("bronze.more", 1, ONE), ("bronze.more", 2, NOON)]
    rows = [
        {"_event_id": str(seq), "_ingest_seq": seq, "_ingest_time": at, "_source_table": table}
        | {"_other_event_id": "1", "_other_ingest_seq": 1, "_other_ingest_time": NOON, "_side": "both"}
        for table, seq, at in left
    ]
    if not named:
        rows = [{name: value for name, value in row.items() if name != "_source_table"} for row in rows]
    written = pa.Table.from_pylist(rows)
    times = [index for index, name in enumerate(written.column_names) if name.endswith("ingest_time")]
    for index in times:
        written = written.set_column(index, written.column_names[index], written.column(index).cast(INSTANT))
    write(lake, "gold.paid", written, stamp=a_stamp(0, pipeline=definition.name, ledger=entry))
    is_late = {"_event_id": "2", "_ingest_seq": 2, "_side": "left", "settled_version": 0}
    # Of the same id and number, and of the other table.
    other = {"_event_id": "2", "_ingest_seq": 2, "_ingest_time": ONE, "_side": "left", "_source_table": "bronze.sales"}
    late(lake, TABLE | SIDE, {**is_late, "_source_table": "bronze.more"}, other, table="gold.paid__late")
    told = {text.partition(":")[0]: (holds, text) for holds, text in audit.checks(lake, definition, 1, [(0, entry)])}
    assert told["left events"] == (True, "left events: 2 on time, 2 in gold.paid, left open or not written 0")
    assert told["right events"] == (True, "right events: 1 on time, 1 in gold.paid, right open or not written 0")


class TestSql:
    @pytest.mark.parametrize(
        ("one", "other", "several", "same"),
        [
            (("bronze.a", 1, "x"), ("bronze.a", 1, "x"), True, True),
            (("bronze.a", 1, "x"), ("bronze.b", 1, "x"), True, False),
            (("bronze.a", 1, "x"), ("bronze.a", 2, "x"), True, False),
            (("bronze.a", 1, "x"), (None, 1, "x"), True, True),
            (("bronze.a", 1, "x"), (None, 1, "y"), True, False),
            (("bronze.a", 1, None), (None, 1, None), True, True),
            ((None, 1, "x"), (None, 1, "y"), False, True),
        ],
    )
    def test_two_rows_are_of_one_event(self, one: tuple, other: tuple, several: bool, same: bool) -> None:
        columns = "(_source_table, _ingest_seq, _event_id)"
        sql = same_event(lambda name: f"a.{name}", lambda name: f"b.{name}", several=several)
        with duckdb.connect() as connection:
            for alias, row in (("a", one), ("b", other)):
                values = "SELECT *, NULL::TIMESTAMPTZ AS _ingest_time FROM (VALUES (?::VARCHAR, ?, ?::VARCHAR))"
                connection.execute(f"CREATE TABLE {alias} AS {values} t{columns}", list(row))
            assert connection.execute(f"SELECT count(*) FROM a, b WHERE {sql}").fetchone() == (int(same),)


class TestPlans:
    STATELESS = a_pipeline(steps=(Where("quantity > 0"),), watermark=None, source=UNION)
    FIRST = a_pipeline(steps=(Deduplicate("product_id", within="1 hour"),), source=UNION)

    @pytest.mark.parametrize("definition", [STATELESS, FIRST], ids=["stateless", "deduplicate"])
    def test_rows_of_several_tables_have_their_table_in_their_key(self, definition: Pipeline) -> None:
        keys = logical.build(definition).operator.output.row_keys
        assert keys == ("_event_id", "_ingest_seq", "_ingest_time", "_source_table")

    def test_rows_of_one_table_are_known_by_their_number(self) -> None:
        one = a_pipeline(steps=(Where("quantity > 0"),), watermark=None)
        assert (
            logical.build(one).operator.output.row_keys == event_columns(several=False) == ("_event_id", "_ingest_seq")
        )

    def test_of_a_join_only_the_side_with_several_tables_names_them(self) -> None:
        planned = logical.build(a_pipeline(source=UNION, steps=(JOIN,)))
        assert [name for name in planned.operator.output.row_keys if "source_table" in name] == ["_source_table"]
        assert planned.names_sources
        assert [planned.side_of(name).name for name in ("bronze.more", "bronze.paid")] == ["left", "right"]

    def test_the_content_of_a_batch_is_told_by_events_and_not_by_their_ids(self) -> None:
        assert {"_source_table", "_ingest_seq"} <= {*logical.build(self.STATELESS).operator.output.content}
        joined = logical.build(a_pipeline(source=UNION, steps=(JOIN,))).operator.output.content
        assert {"_source_table", "_ingest_seq", "_other_ingest_seq"} <= {*joined}


def test_a_table_of_an_earlier_version_gets_the_column(lake: Lake) -> None:
    fields = [StructField("_ingest_seq", LongType()), StructField("_source_table", StringType())]
    create_table(lake, LATE, StructType(fields[:1]))
    write(lake, LATE, {"_ingest_seq": [1]})
    assert create_table(lake, LATE, StructType(fields)) == {"_ingest_seq", "_source_table"}
    assert open_table(lake, LATE).to_pyarrow_table().to_pylist() == [{"_ingest_seq": 1, "_source_table": None}]


@pytest.mark.parametrize(
    ("had", "gives", "same"),
    [
        ("identity:a", "identity:a", True),
        ("identity:a", "identity:b", False),
        ("a", "b", False),
        ("a", "identity:b", True),  # an earlier version wrote it: the number of rows decides
        (None, "identity:b", False),
        (None, None, True),
    ],
)
def test_digests_of_one_form_are_compared(had: str | None, gives: str | None, same: bool) -> None:
    assert a_stamp(content=had).has_same_content(a_stamp(content=gives)) is same
