"""Small appends to a folder lake: on the disk before the commit that names them, and what `deltalake` itself writes."""

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError

from spark_jobs.lake.commit_records.durability import added_files
from spark_jobs.lake.commit_records.history import actions_at, commit_at
from spark_jobs.lake.tables import opening as tables
from spark_jobs.lake.tables.appends import COMPRESSED, append, append_rows, place_files
from spark_jobs.lake.tables.opening import open_or_create, open_table
from tests.support.builders import a_lake

TABLE = "gold.totals"
AT = datetime(2026, 1, 1, 12, 30, 15, 123456, UTC)
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", TIME),
        ("text", pa.string()),
        ("small", pa.int32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("bytes", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("_source", pa.struct([("name", pa.string()), ("partition", pa.int32()), ("position", pa.int64())])),
    ]
)
ROWS = [
    {
        "id": 1,
        "at": AT,
        "text": "é" * 200,
        "small": -1,
        "double": 0.5,
        "flag": True,
        "price": Decimal("12345678901234567890.0123456789"),
        "day": date(1969, 12, 31),
        "bytes": b"\x00\xff",
        "tags": ["a", None],
        "counts": [("k", 1), ("l", None)],
        "_source": {"name": "file.json", "partition": None, "position": 7},
    },
    {"id": 2, "at": datetime(1, 1, 1, tzinfo=UTC), "tags": [], "counts": [], "double": float("nan")},
    {"id": 3},
]


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


def rows_of(values, schema=SCHEMA):
    return pa.Table.from_pylist(values, schema=schema)


def made(lake, table=TABLE, *, schema=SCHEMA, **properties):
    return open_or_create(lake, table, schema, {name: str(value) for name, value in properties.items()})


def commit_file(lake, version, table=TABLE):
    return Path(lake.table_path(table), "_delta_log", f"{version:020d}.json")


def added(lake, version, table=TABLE):
    return [action["add"] for action in actions_at(lake, table, version) if "add" in action]


def ids(lake, table=TABLE):
    return sorted(open_table(lake, table).to_pyarrow_table().column("id").to_pylist())


def test_columns_that_a_table_of_an_earlier_version_lacks_are_added(lake):
    append_rows(lake, "ops.metrics", pa.table({"a": [1]}))
    append_rows(lake, "ops.metrics", pa.table({"a": [2], "b": ["x"]}))
    append_rows(lake, "ops.metrics", pa.table({"a": [3], "b": ["y"]}))
    found = open_table(lake, "ops.metrics").to_pyarrow_table().to_pylist()
    assert sorted((row["a"], row["b"]) for row in found) == [(1, None), (2, "x"), (3, "y")]


@pytest.mark.parametrize("writer", ["append", "append_rows"])
def test_data_files_are_on_the_disk_before_a_commit_names_them(lake, monkeypatch, writer):
    table, commit = made(lake), commit_file(lake, 1)
    forced, fsync = [], os.fsync

    def noted_fsync(descriptor):
        fsync(descriptor)
        if not commit.exists():
            forced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    if writer == "append":
        append(lake, TABLE, table, rows_of(ROWS))
    else:
        append_rows(lake, TABLE, rows_of(ROWS))
    ((file, size),) = added_files(lake, TABLE, 1)
    folder = lake.table_path(TABLE)
    assert [path for path, _ in forced] == [str(file), folder]
    assert forced[0] == (str(file), size), "all of it"


@pytest.mark.parametrize(
    "properties",
    [{}, {"delta.dataSkippingStatsColumns": "at,id"}, {"delta.dataSkippingNumIndexedCols": 3}],
    ids=["all", "some", "first"],
)
def test_an_append_is_the_one_that_deltalake_would_make(lake, properties):
    rows = rows_of(ROWS)
    stamp = CommitProperties(custom_metadata={"userMetadata": "{}"}, app_transactions=[Transaction("app", 7)])
    theirs, ours = (made(lake, name, **properties) for name in ("gold.theirs", "gold.ours"))
    write_deltalake(theirs, rows, mode="append", commit_properties=stamp, writer_properties=COMPRESSED)
    append(lake, "gold.ours", ours, rows, stamp)

    (expected,), (found,) = (added(lake, 1, name) for name in ("gold.theirs", "gold.ours"))
    unlike = ("path", "modificationTime")
    statistics = [json.loads(add.pop("stats")) for add in (expected, found)]
    assert statistics[0] == statistics[1]
    assert statistics[0]["numRecords"] == len(ROWS)
    assert {key: expected[key] for key in expected if key not in unlike} == {
        key: found[key] for key in found if key not in unlike
    }
    for name, add in (("gold.theirs", expected), ("gold.ours", found)):
        assert Path(lake.table_path(name), add["path"]).stat().st_size == add["size"]
    files = [
        Path(lake.table_path(name), add["path"]) for name, add in (("gold.theirs", expected), ("gold.ours", found))
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    commits = [commit_at(lake, name, 1) for name in ("gold.theirs", "gold.ours")]
    for key in ("operation", "userMetadata", "engineInfo"):
        assert commits[0][key] == commits[1][key]
    for key in ("num_added_rows", "num_added_files"):
        assert commits[0]["operationMetrics"][key] == commits[1]["operationMetrics"][key]
    assert [open_table(lake, name).transaction_version("app") for name in ("gold.theirs", "gold.ours")] == [7, 7]


def test_every_type_comes_back_in_arrow_and_in_duckdb(lake):
    append(lake, TABLE, made(lake), rows_of(ROWS))
    expected = rows_of(ROWS).drop_columns("double").to_pylist()
    read = pa.table(open_table(lake, TABLE).to_pyarrow_table()).cast(SCHEMA)
    assert read.drop_columns("double").to_pylist() == expected
    ((file, _),) = added_files(lake, TABLE, 1)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql("SELECT * FROM read_parquet($path)", params={"path": str(file)}).to_arrow_table()
    assert found.cast(SCHEMA).drop_columns("double").to_pylist() == expected
    # As Spark reads times: microseconds of UTC in 64 bits.
    at = pq.ParquetFile(file).schema.column(SCHEMA.names.index("at"))
    assert at.physical_type == "INT64"
    assert {"isAdjustedToUTC": True, "timeUnit": "microseconds"}.items() <= json.loads(
        at.logical_type.to_json()
    ).items()


def test_files_are_found_by_their_statistics(lake):
    for first in (0, 10, 20):
        table = open_or_create(lake, TABLE, SCHEMA, {"delta.dataSkippingStatsColumns": "id,at"})
        append(lake, TABLE, table, rows_of([{"id": first + number, "at": AT} for number in range(3)]))
    table = open_table(lake, TABLE)
    assert len(tables.files_holding(table, "id", [11, 15])) == 1
    assert tables.rows_holding(lake, TABLE, "id", [11, 15]).column("id").to_pylist() == [11]
    assert tables.row_count(table) == 9


def test_without_rows_there_is_a_commit_and_no_file(lake):
    properties = CommitProperties(custom_metadata={"userMetadata": "{}"}, app_transactions=[Transaction("app", 1)])
    append(lake, TABLE, made(lake), SCHEMA.empty_table(), properties)
    assert (added(lake, 1), open_table(lake, TABLE).transaction_version("app")) == ([], 1)
    assert list(Path(lake.table_path(TABLE)).glob("*.parquet")) == []


def test_what_a_loss_of_power_leaves_before_the_commit_are_no_rows(lake, monkeypatch):
    table = made(lake)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: None)
        append(lake, TABLE, table, rows_of(ROWS))
    assert len(list(Path(lake.table_path(TABLE)).glob("*.parquet"))) == 1
    assert ids(lake) == []
    append(lake, TABLE, open_table(lake, TABLE), rows_of(ROWS))
    assert ids(lake) == [1, 2, 3]


@pytest.mark.parametrize("asked", [1, 2], ids=["of the file", "of the folder"])
def test_where_the_disk_refuses_nothing_is_committed(lake, monkeypatch, asked):
    table, calls, fsync = made(lake), [], os.fsync

    def refuse(descriptor):
        calls.append(descriptor)
        if len(calls) == asked:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left on device"):
            append(lake, TABLE, table, rows_of(ROWS))
    assert not commit_file(lake, 1).exists()
    assert len(list(Path(lake.table_path(TABLE)).glob("*.parquet"))) == asked - 1
    append(lake, TABLE, table, rows_of(ROWS))
    assert ids(lake) == [1, 2, 3]


def test_a_data_file_that_is_there_already_is_neither_replaced_nor_removed(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, names in ((here, ("first", "second", "third")), (there, ("second",))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{folder.name}: {name}")
    with pytest.raises(FileExistsError):
        place_files(here, there, ["first", "second", "third"])
    # Of those that it has placed itself nothing is left.
    assert {path.name: path.read_text() for path in there.iterdir()} == {"second": "there: second"}


def test_of_two_that_append_under_one_id_the_second_is_refused(lake):
    made(lake)
    first, second = open_table(lake, TABLE), open_table(lake, TABLE)
    properties = CommitProperties(app_transactions=[Transaction("app", 1)])
    append(lake, TABLE, first, rows_of(ROWS), properties)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        append(lake, TABLE, second, rows_of(ROWS), properties)
    append(lake, TABLE, second, rows_of(ROWS), CommitProperties(app_transactions=[Transaction("other", 1)]))
    assert ids(lake) == [1, 1, 2, 2, 3, 3]


def test_rows_that_the_table_refuses_are_refused(lake):
    table = made(lake, schema=pa.schema([("id", pa.int64())]), **{"delta.appendOnly": "true"})
    table.alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(DeltaError, match="validation check"):
        append(lake, TABLE, open_table(lake, TABLE), pa.table({"id": pa.array([-1], pa.int64())}))
    with pytest.raises(SchemaMismatchError):
        append(lake, TABLE, open_table(lake, TABLE), pa.table({"id": [1], "other": [1]}))
    assert ids(lake) == []
