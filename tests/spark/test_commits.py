"""Several writers of one table at once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.commits import changes, merging
from spark_jobs.commits.changes import GONE, Append, ReplaceWindows, Revise, Upsert
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.merging import CommitId
from spark_jobs.commits.small import SmallCommits
from spark_jobs.commits.tables import create_table
from spark_jobs.commits.writer import TableWriter
from spark_jobs.lake.checkpoints.claims import take_over
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.commit_records.basis import Basis, OutdatedPlanError
from spark_jobs.lake.commit_records.durability import added_files
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spark.frames import size_of
from tests.support.builders import a_lake, a_running_total, a_stamp

COLUMNS = StructType(
    [StructField("k", StringType()), StructField("n", LongType()), StructField("revision", LongType())]
)


@pytest.fixture
def lake(tmp_path):
    lake = a_lake(tmp_path)
    create_table(lake, "gold.totals", COLUMNS)
    return lake


def test_of_two_drivers_that_make_a_table_at_once_one_makes_it(tmp_path):
    lake, barrier, tables = a_lake(tmp_path), Barrier(2, timeout=60), 20

    def create(_):
        for number in range(tables):
            barrier.wait()
            create_table(lake, f"gold.t{number}", COLUMNS)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(create, range(2)))
    # A second version would give it another id, at which Spark's readers of the first one stop.
    assert {open_table(lake, f"gold.t{number}").version() for number in range(tables)} == {0}


def test_a_table_that_cannot_be_made_is_told_with_what_the_store_said(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise CommitFailedError("the store has refused it")

    monkeypatch.setattr(DeltaTable, "create", refuse)
    with pytest.raises(LakeUnavailableError, match=r"gold\.totals: cannot be created in .*: the store has refused it"):
        create_table(a_lake(tmp_path), "gold.totals", COLUMNS)


def test_upserts_of_several_pipelines_to_one_table_are_all_kept(lake, spark):
    writers, batches = 3, 4
    barrier = Barrier(writers, timeout=60)

    def upsert(number):
        name, session = f"p{number}", spark.newSession()
        barrier.wait()
        for batch in range(batches):
            rows = session.createDataFrame(pa.table({"k": [name], "n": [batch], "revision": [1]}))
            SmallCommits(lake, "gold.totals").commit(Upsert(rows, 1, 0, ("k",)), CommitId(name, batch), "{}")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(upsert, range(writers)))
    table = open_table(lake, "gold.totals")
    rows = {row["k"]: (row["n"], row["revision"]) for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {f"p{number}": (batches - 1, batches) for number in range(writers)}


def test_a_large_upsert_is_tried_again_where_the_table_changed_meanwhile(lake, spark):
    writers = 2
    barrier = Barrier(writers, timeout=60)

    def upsert(number):
        name, session = f"p{number}", spark.newSession()
        rows = session.createDataFrame(pa.table({"k": [name], "n": [number], "revision": [1]}))
        barrier.wait()
        LargeCommits(lake, "gold.totals").commit(Upsert(rows, 1, 0, ("k",)), CommitId(name, 0), "{}")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(upsert, range(writers)))
    rows = {row["k"]: row["n"] for row in open_table(lake, "gold.totals").to_pyarrow_table().to_pylist()}
    assert rows == {f"p{number}": number for number in range(writers)}


def test_an_upsert_without_rows_commits_its_ledger_and_reads_nothing(lake, spark):
    writer = TableWriter(lake, "gold.totals", "result", "p", query_id="query", epoch=1)
    rows = spark.createDataFrame(pa.table({"k": ["a"], "n": [1], "revision": [1]}))
    writer.commit(Upsert(rows, 1, 0, ("k",)), a_stamp(0, pipeline="p", rows=1))
    for file in Path(lake.uri, "gold/totals").glob("*.parquet"):
        file.unlink()
    nothing = a_stamp(1, pipeline="p", rows=0)
    writer.commit(Upsert(rows.limit(0), 0, 0, ("k",)), nothing)
    assert writer.has(nothing)


WINDOWED = StructType(
    [StructField("window_end", TimestampType()), *COLUMNS],
)


def windowed(spark, rankings):
    """Rows of a ranking from {hour: {key: n}}."""
    rows = [(hour(number), k, n, 1) for number, ranking in rankings.items() for k, n in ranking.items()]
    return spark.createDataFrame(rows, WINDOWED)


def hour(number):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)


@pytest.mark.parametrize(
    ("few_rows", "few_windows"),
    [
        (50_000, 1_000),
        (50_000, 1),
        (0, 1_000),
        # Many rows: [0-1000]; many windows: [50000-1]
        pytest.param(0, 1, marks=pytest.mark.long),
    ],
)
def test_the_rows_of_the_windows_of_a_batch_are_replaced_and_no_others(
    tmp_path, spark, monkeypatch, few_rows, few_windows
):
    monkeypatch.setattr(changes, "_FEW_ROWS_TO_MERGE", few_rows)
    monkeypatch.setattr(merging, "FEW_WINDOWS", few_windows)
    lake, keys = a_lake(tmp_path), ("window_end", "k")
    create_table(lake, "gold.ranking", WINDOWED, statistics=("window_end",))
    writer = TableWriter(lake, "gold.ranking", "result", "p", query_id="query", epoch=1)
    batches = (
        {1: {"a": 1, "b": 2, None: 3}, 2: {"a": 1, None: 3}, 3: {"b": 2, None: 3}},
        {1: {"a": 1, "c": 5}, 3: {"b": 9, None: 3}},
        {1: {None: 7}, 3: {None: 3}, 9: {"a": 1}},
    )
    expected = {}
    for batch_id, rankings in enumerate(batches):
        rows = windowed(spark, rankings)
        count = rows.count()
        writer.commit(ReplaceWindows(rows, count, 0, keys), a_stamp(batch_id, pipeline="p", rows=count))
        for number, ranking in rankings.items():
            before = expected.get(number, {})
            # A row that does not change keeps its revision; one that comes back is a new one.
            expected[number] = {
                k: (n, before[k][1] + (before[k][0] != n)) if k in before else (n, 1) for k, n in ranking.items()
            }
        table = open_table(lake, "gold.ranking").to_pyarrow_table().to_pylist()
        found = sorted((row["window_end"], repr(row["k"]), row["n"], row["revision"]) for row in table)
        assert found == sorted((hour(e), repr(k), n, r) for e, rows in expected.items() for k, (n, r) in rows.items())


def test_a_batch_may_change_tens_of_thousands_of_windows(tmp_path, spark):
    lake, windows = a_lake(tmp_path), 30_000
    create_table(lake, "gold.minutes", WINDOWED, statistics=("window_end",))
    writer = TableWriter(lake, "gold.minutes", "result", "p", query_id="query", epoch=1)
    for batch_id, first in enumerate((0, windows // 2)):
        minutes = spark.range(first, first + windows).selectExpr(
            "timestamp_seconds(id * 60) AS window_end", "'a' AS k", f"{batch_id}L AS n", "1L AS revision"
        )
        stamp = a_stamp(batch_id, pipeline="p", rows=windows)
        change = (ReplaceWindows if batch_id else Upsert)(minutes, windows, 0, ("window_end", "k"))
        writer.commit(change, stamp)
    found = Counter(
        (row["n"], row["revision"]) for row in open_table(lake, "gold.minutes").to_pyarrow_table().to_pylist()
    )
    assert found == {(0, 1): windows // 2, (1, 2): windows // 2, (1, 1): windows // 2}


def test_fewer_rows_are_merged_than_appended_without_spark(spark):
    rows = spark.range(1).selectExpr("'a' AS k", "id AS n", "1L AS revision")
    appended = [Append(rows, count, 0).few for count in (250_000, 250_001)]
    merged = [Upsert(rows, count, 0, ("k",)).few for count in (50_000, 50_001)]
    assert appended == merged == [True, False]


def test_few_rows_that_are_large_are_not_collected(lake, spark, monkeypatch):
    monkeypatch.setattr(changes, "_FEW_BYTES", 500_000)
    writer = TableWriter(lake, "gold.totals", "result", "p", query_id="query", epoch=1)
    for batch_id, length in enumerate((10_000, 20_000)):
        rows = spark.range(40).selectExpr(f"rpad(id, {length}, 'x') AS k", "id AS n", "1L AS revision").persist()
        rows.count()
        assert 40 * length <= size_of(rows) < 41 * length
        writer.commit(Append(rows, 40, size_of(rows)), a_stamp(batch_id, pipeline="p", rows=40))
    writer.commit(Upsert(rows, 40, size_of(rows), ("k",)), a_stamp(2, pipeline="p", rows=40))
    # Newest first.
    spark_wrote = [
        commit["engineInfo"].startswith("Apache-Spark") for commit in open_table(lake, "gold.totals").history()
    ]
    assert spark_wrote[:3] == [True, True, False]
    rows.unpersist()


def test_spark_reads_and_goes_on_with_what_was_appended_without_it(tmp_path, spark):
    lake = a_lake(tmp_path)
    schema = StructType.fromDDL(
        "id BIGINT, at TIMESTAMP, text STRING, price DECIMAL(38, 10), day DATE, bytes BINARY, flag BOOLEAN, "
        "tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, _source STRUCT<name: STRING, partition: INT, position: BIGINT>"
    )
    create_table(lake, "gold.types", schema, statistics=("at", "id"))
    values = [
        (
            *(1, hour(1) + timedelta(microseconds=1), "é", Decimal("12345678901234567890.0123456789")),
            *(date(1969, 12, 31), bytearray(b"\x00\xff"), True, ["a", None], {"k": 1, "l": None}, ("file", None, 7)),
        ),
        (2, datetime(1582, 1, 1, tzinfo=UTC), *[None] * 8),
    ]
    rows = spark.createDataFrame(values, schema)
    small, large, change = SmallCommits(lake, "gold.types"), LargeCommits(lake, "gold.types"), Append(rows, 2, 0)
    small.commit(change, CommitId("p", 0), "{}")
    large.commit(change, CommitId("p", 1), "{}")
    # It is a batch that Spark knows, too.
    large.commit(change, CommitId("p", 0), "{}")

    found = spark.read.format("delta").load(lake.table_path("gold.types"))
    (added,) = added_files(lake, "gold.types", 1)
    own = found.where(F.input_file_name().endswith(added[0].name))
    assert own.orderBy("id").collect() == rows.orderBy("id").collect()
    assert found.count() == 4
    for column, value in (("at", hour(1) + timedelta(microseconds=1)), ("id", 1)):
        assert found.where(F.col(column) == F.lit(value)).select("id").collect() == [(1,), (1,)]


@pytest.mark.parametrize("left", ["data file alone", "empty commit"])
def test_a_small_append_whose_commit_was_lost_with_power_is_made_again(lake, left):
    rows = pa.table({"k": ["a", "b"], "n": [1, 2], "revision": [1, 1]})
    stamp = a_stamp(0, pipeline="p", rows=2)
    change = Append(rows, 2, rows.nbytes)
    TableWriter(lake, "gold.totals", "result", "p", query_id="query", epoch=1).commit(change, stamp)
    commit = Path(lake.uri, "gold/totals/_delta_log", f"{1:020d}.json")
    commit.unlink() if left == "data file alone" else commit.write_bytes(b"")

    writer = TableWriter(lake, "gold.totals", "result", "p", query_id="query", epoch=1)
    assert not writer.has(stamp)
    assert writer.commit(change, stamp) == writer.commit(change, stamp) == stamp
    assert open_table(lake, "gold.totals").to_pyarrow_table().num_rows == 2


def test_a_revision_by_spark_is_skipped_once_its_epoch_was_ended(tmp_path, spark):
    lake = a_lake(tmp_path)
    create_table(lake, "gold.totals", COLUMNS)
    epoch = begin_epoch(lake, a_running_total(), 1)
    basis = Basis.of(lake, epoch.pipeline, 1, ["gold.totals"])
    rows = spark.createDataFrame(pa.table({"k": ["a"], "n": [1], "revision": [1]})).withColumn(GONE, F.lit(False))

    def ended_once_it_is_permitted(opened):
        basis.revision(lake, "gold.totals", opened)
        take_over(lake, epoch, ["gold.totals"])

    def revise(permitted):
        commit_id = CommitId(*basis.revision(lake, "gold.totals", open_table(lake, "gold.totals")))
        change = Revise(rows, 1, 0, ("k",), None, permitted)
        LargeCommits(lake, "gold.totals").commit(change, commit_id, "{}")
        return commit_id

    first = revise(lambda opened: basis.revision(lake, "gold.totals", opened))
    basis = basis.after("gold.totals", first.number)
    version = open_table(lake, "gold.totals").version()
    revise(ended_once_it_is_permitted)
    assert open_table(lake, "gold.totals").version() == version + 1, "the end of the epoch, and nothing else"
    with pytest.raises(OutdatedPlanError, match=r"a reset or a rebuild has taken gold\.totals"):
        revise(lambda opened: None)
