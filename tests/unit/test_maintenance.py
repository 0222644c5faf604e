"""Maintenance of real tables, without a JVM: nothing that anybody needs is lost, and everything stays small."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from spark_jobs.lake.checkpoints.epochs import Starts, begin_epoch, fix_starts
from spark_jobs.lake.commit_records.history import latest_version, ledger_rows
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.maintenance import compaction
from spark_jobs.lake.maintenance.compaction import DataFile, compact, data_files_of, groups_to_compact
from spark_jobs.lake.maintenance.readers import Need, needs
from spark_jobs.lake.maintenance.retention import first_version
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables.opening import open_table, row_count
from spark_jobs.operations.maintain import execute as maintenance
from spark_jobs.operations.maintain.execute import Maintenance
from spark_jobs.operations.maintain.plan import Pace
from spark_jobs.operations.maintain.text import done_text, plan_text
from spark_jobs.spec import Enrich, Table
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write

TABLE, NAME = "gold.hourly_sales", "hourly_sales"

TOMORROW = datetime.now(UTC) + timedelta(days=1, hours=1)
HASTY = Pace(now=TOMORROW, quiet=timedelta(0), in_flight=timedelta(hours=1), fewest_commits=5, fewest_files=2)
AN_HOUR = Retention(versions=timedelta(hours=1), lookups=timedelta(hours=1))


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def batches(lake, count: int, *, first: int = 0, table: str = TABLE) -> None:
    for batch_id in range(first, first + count):
        ledger = a_batch(1, pairs=1, pairs_result=1, state_rows=0)
        write(lake, table, {"n": [batch_id], "name": [f"row {batch_id}"]}, stamp=a_stamp(batch_id, ledger=ledger))


def rows(lake, table: str = TABLE):
    return duckdb.sql("SELECT * FROM held ORDER BY n", connection=_of(lake, table)).fetchall()


def _of(lake, table):
    connection = duckdb.connect()
    connection.register("held", open_table(lake, table).to_pyarrow_dataset())
    return connection


def maintain(lake, *, retention=AN_HOUR, pace=HASTY):
    what = Maintenance(lake, retention, pace)
    return {table.name: what.execute(table) for table in what.tables()}


def parquet_files(lake, table: str = TABLE) -> int:
    return len([*Path(lake.table_path(table)).glob("*.parquet")])


class TestATable:
    def test_has_the_same_rows_in_one_file_and_a_short_log(self, lake):
        batches(lake, 30)
        before, ledger = rows(lake), ledger_rows(lake, TABLE, NAME, 1)
        done = maintain(lake)[TABLE]
        assert (done.to_ledger, done.files_before, done.files_after, done.problem) == (30, 30, 1, None)
        assert (done.removed, parquet_files(lake)) == (0, 31)  # the versions that the log still has need them
        assert rows(lake) == before
        assert ledger_rows(lake, TABLE, NAME, 1) == ledger
        assert first_version(lake, TABLE) == latest_version(lake, TABLE) + 1 - 5

    def test_loses_the_files_that_no_version_of_its_log_names(self, lake):
        batches(lake, 20)
        maintain(lake)
        batches(lake, 6, first=20)
        done = maintain(lake)[TABLE]
        # The log has five commits: four of batches and that of this compaction.
        assert (done.removed, done.files_after, first_version(lake, TABLE)) == (20, 1, latest_version(lake, TABLE) - 4)
        assert parquet_files(lake) == 1 + 6 + 1
        assert [row[0] for row in rows(lake)] == list(range(26))

    def test_goes_on_and_is_maintained_again(self, lake):
        for first in range(0, 24, 8):
            batches(lake, 8, first=first)
            assert maintain(lake)[TABLE].files_after == 1
        assert [row[0] for row in rows(lake)] == list(range(24))
        assert [batch_id for batch_id, _ in ledger_rows(lake, TABLE, NAME, 1)] == list(range(24))
        # Every version that the log has can be read.
        for version in range(first_version(lake, TABLE), latest_version(lake, TABLE) + 1):
            assert open_table(lake, TABLE, version=version).to_pyarrow_dataset().count_rows() > 0

    def test_is_left_alone_by_default_while_it_is_young(self, lake):
        batches(lake, 12)
        done = maintain(lake, retention=Retention(), pace=Pace())[TABLE]
        assert (done.to_ledger, done.files_after, done.cut, done.removed) == (12, 12, 0, 0)

    def test_of_which_a_file_is_gone_is_not_touched(self, lake):
        batches(lake, 12)
        next(Path(lake.table_path(TABLE)).glob("*.parquet")).unlink()
        version = latest_version(lake, TABLE)
        done = maintain(lake)[TABLE]
        assert done.problem is not None
        assert "1 of its data files are gone" in done.problem
        assert latest_version(lake, TABLE) == version

    @pytest.mark.parametrize(("merges", "files_left"), [(1, 1), (9, 17)])
    def test_is_compacted_at_a_later_try_where_a_stream_merges_into_its_files(
        self, lake, monkeypatch, merges, files_left
    ):
        batches(lake, 20)
        merged = []

        def while_a_stream_merges(lake, table, group, order):
            if len(merged) < merges:
                merged.append(len(merged))
                open_table(lake, table).delete(f"n = {len(merged)}")
            return compact(lake, table, group, order)

        monkeypatch.setattr(maintenance, "compact", while_a_stream_merges)
        done = maintain(lake)[TABLE]
        assert (done.files_after, done.problem) == (files_left, None)
        assert ("other writers changed some" in done_text(done)) == (files_left > 1)
        assert [row[0] for row in rows(lake)] == [n for n in range(20) if n not in range(1, len(merged) + 1)]

    def test_keeps_the_version_that_a_batch_looked_up_many_commits_ago(self, lake):
        for version in range(9):
            write(lake, "silver.shops", {"shop": [version], "city": ["Kiel"]})
        lookup = Enrich("silver.shops", on=("product_id",), columns={"city": "city"})
        definition = a_pipeline(steps=(lookup, *a_pipeline().steps))
        fix_starts(lake, begin_epoch(lake, definition, 1), Starts(versions={"bronze.sales": 0}))
        ledger = a_batch(1, reads={"silver.shops": (2, 3)})
        write(lake, TABLE, {"n": [0], "name": ["row"]}, stamp=a_stamp(ledger=ledger))
        for days in range(30):
            open_table(lake, TABLE).alter.set_table_properties({"delta.logRetentionDuration": f"{days} days"})
        assert needs(lake)["silver.shops"] == Need(2, NAME)

    def test_keeps_the_versions_that_a_reader_needs(self, lake):
        batches(lake, 20, table="bronze.sales")
        definition = a_pipeline(name="reader", source=Table("bronze.sales"))
        fix_starts(lake, begin_epoch(lake, definition, 1), Starts(versions={"bronze.sales": 3}))
        done = maintain(lake)["bronze.sales"]
        assert (done.held_by, first_version(lake, "bronze.sales")) == (("reader", 3), 3)
        assert parquet_files(lake, "bronze.sales") == 20 + 1
        plan = Maintenance(lake, AN_HOUR, HASTY)
        assert [plan.plan(table).held_by for table in plan.tables(["bronze.sales"])] == [("reader", 3)]


class TestCompaction:
    def test_nothing_is_lost_where_others_commit_meanwhile(self, lake):
        batches(lake, 6)
        group = data_files_of(open_table(lake, TABLE))[:3]
        batches(lake, 2, first=6)
        assert compact(lake, TABLE, group, ()) == 8
        assert [row[0] for row in rows(lake)] == list(range(8))

    def test_it_gives_way_to_who_has_taken_its_files_away(self, lake):
        batches(lake, 6)
        group = data_files_of(open_table(lake, TABLE))[:3]
        open_table(lake, TABLE).delete("n = 1")
        assert compact(lake, TABLE, group, ()) is None
        assert [row[0] for row in rows(lake)] == [0, 2, 3, 4, 5]
        assert parquet_files(lake) == 6

    def test_a_row_that_is_deleted_while_it_works_stays_deleted(self, lake, monkeypatch):
        batches(lake, 6)
        group, read = data_files_of(open_table(lake, TABLE))[:3], compaction._rows

        def read_before_another_deletes(*arguments):
            found = read(*arguments)
            open_table(lake, TABLE).delete("n = 1")
            return found

        monkeypatch.setattr(compaction, "_rows", read_before_another_deletes)
        assert compact(lake, TABLE, group, ()) is None
        assert [row[0] for row in rows(lake)] == [0, 2, 3, 4, 5]
        assert parquet_files(lake) == 6  # what it had written itself is gone

    def test_rows_are_sorted_by_what_people_ask_for(self, lake):
        for n in (3, 1, 2):
            write(lake, TABLE, {"n": [n, n + 10], "name": ["b", "a"]})
        compact(lake, TABLE, data_files_of(open_table(lake, TABLE)), ("name", "n"))
        (path,) = open_table(lake, TABLE).file_uris()
        found = duckdb.sql(f"SELECT name, n FROM read_parquet('{path}')").fetchall()
        assert found == [("a", 11), ("a", 12), ("a", 13), ("b", 1), ("b", 2), ("b", 3)]

    def test_a_damaged_row_count_changes_nothing(self, lake):
        batches(lake, 3)
        files = data_files_of(open_table(lake, TABLE))
        wrong = [DataFile(file.path, file.size, file.modified_ms, 2) for file in files]
        with pytest.raises(Exception, match="hold 3 rows, their log says 6"):
            compact(lake, TABLE, wrong, ())
        assert latest_version(lake, TABLE) == 2

    def test_a_column_that_the_table_does_not_know_is_not_lost(self, lake):
        batches(lake, 3)
        first, *_ = files = data_files_of(open_table(lake, TABLE))
        path = Path(lake.table_path(TABLE), first.path)
        pq.write_table(pq.read_table(path).rename_columns(["n", "col-7f4a"]), path)
        with pytest.raises(LedgerError, match=r"has columns \['col-7f4a'\], which the table does not have"):
            compact(lake, TABLE, files, ())
        assert latest_version(lake, TABLE) == 2

    def test_nulls_that_the_log_does_not_know_change_nothing(self, lake):
        batches(lake, 3)
        first, *_ = files = data_files_of(open_table(lake, TABLE))
        path = Path(lake.table_path(TABLE), first.path)
        pq.write_table(pq.read_table(path).drop_columns(["name"]), path)
        with pytest.raises(LedgerError, match="column 'name' has 1 nulls where its log says 0"):
            compact(lake, TABLE, files, ())
        assert latest_version(lake, TABLE) == 2

    @pytest.mark.parametrize(
        ("changed", "told"),
        [
            (lambda rows: rows.slice(0, 2), "other rows, values, column 'n', column 'name' than"),
            (lambda rows: rows.set_column(0, "n", [[0, 0, 3]]), "other values, column 'n' than"),
            (lambda rows: rows.set_column(0, "n", [rows["n"].to_pylist()[::-1]]), "other values than"),
        ],
    )
    def test_what_is_written_is_read_again_before_it_is_named(self, lake, monkeypatch, changed, told):
        batches(lake, 3)
        write = compaction.write_deltalake
        monkeypatch.setattr(
            compaction, "write_deltalake", lambda table, rows, **options: write(table, changed(rows), **options)
        )
        with pytest.raises(LedgerError, match=told):
            compact(lake, TABLE, data_files_of(open_table(lake, TABLE)), ())
        assert (latest_version(lake, TABLE), parquet_files(lake)) == (2, 3)

    def test_values_of_every_type_are_the_same_afterwards(self, lake):
        held = {"a": float("nan"), "b": None, "c": {"x": [1, None]}, "d": [("k", 1)], "e": Decimal("1.20"), "held": 1}
        kinds = {"c": pa.struct([("x", pa.list_(pa.int64()))]), "d": pa.map_(pa.string(), pa.int64())}
        kinds |= {"a": pa.float64(), "b": pa.timestamp("us", "UTC"), "e": pa.decimal128(9, 2), "held": pa.int32()}
        schema = pa.schema([(name, kinds[name]) for name in held])
        for _ in range(3):
            write(lake, TABLE, pa.Table.from_pylist([held], schema=schema))
        assert compact(lake, TABLE, data_files_of(open_table(lake, TABLE)), ("e",)) == 3

    def test_readers_find_the_files_in_the_order_in_which_they_came(self, lake):
        batches(lake, 9)
        files = data_files_of(open_table(lake, TABLE))
        compact(lake, TABLE, files[3:6], ())
        batches(lake, 1, first=9)
        found = data_files_of(open_table(lake, TABLE))
        order = [
            sorted(duckdb.sql(f"SELECT n FROM read_parquet('{lake.table_path(TABLE)}/{f.path}')").fetchall())
            for f in found
        ]
        assert [n for part in order for (n,) in part] == list(range(10))


class TestGroups:
    def files(self, *sizes: int, heartbeat: tuple[int, ...] = ()) -> list[DataFile]:
        return [DataFile(f"f{i}", size, 1_000 * i, 1, i in heartbeat) for i, size in enumerate(sizes)]

    def names(self, files, **how):
        groups = groups_to_compact(files, **{"written_before_ms": 10**9, "target": 100, "fewest": 2} | how)
        return [[file.path for file in group] for group in groups]

    def test_small_files_up_to_the_target(self):
        assert self.names(self.files(40, 40, 40, 40, 40)) == [["f0", "f1"], ["f2", "f3"]]

    def test_a_large_file_keeps_its_place_between_them(self):
        assert self.names(self.files(10, 10, 90, 10, 10)) == [["f0", "f1"], ["f3", "f4"]]

    def test_heartbeats_are_drawn_together_apart(self):
        assert self.names(self.files(10, 1, 10, 1, heartbeat=(1, 3))) == [["f0", "f2"], ["f1", "f3"]]

    def test_what_was_just_written_is_left(self):
        assert self.names(self.files(10, 10, 10, 10), written_before_ms=2_000) == [["f0", "f1"]]

    def test_files_of_one_instant_stay_together(self):
        files = [DataFile(f"f{i}", 40, 1_000, 1) for i in range(3)]
        assert self.names(files) == [["f0", "f1", "f2"]]


def test_old_metrics_are_deleted(lake):
    import pyarrow as pa

    now = datetime.now(UTC)
    times = [now - timedelta(days=200), now - timedelta(days=100), now]
    for at in times:
        table = pa.table({"measured_at": pa.array([at], pa.timestamp("us", tz="UTC")), "pipeline": ["p"]})
        write_deltalake(lake.table_uri("ops.metrics"), table, mode="append")
    done = maintain(lake, retention=Retention(), pace=Pace())["ops.metrics"]
    assert (done.expired, row_count(open_table(lake, "ops.metrics"))) == (2, 1)


def test_the_ledger_itself_is_maintained(lake):
    for first in range(0, 18, 6):
        batches(lake, 6, first=first)
        maintain(lake)
    assert row_count(open_table(lake, "ops.ledger")) >= 18
    assert len(open_table(lake, "ops.ledger").file_uris()) <= 2
    assert len(ledger_rows(lake, TABLE, NAME, 1)) == 18


ASIDE = "gold.hourly_sales__rebuilt_0123456789ab"


def test_what_a_rebuild_has_left_is_removed_once_nobody_writes_to_it(lake):
    for table in (TABLE, ASIDE):
        batches(lake, 3, table=table)
    week = Retention(rebuilt=timedelta(days=7))
    assert not maintain(lake, retention=week)[ASIDE].abandoned, "a run may be at it"
    later = Pace(now=datetime.now(UTC) + timedelta(days=8))
    what = Maintenance(lake, week, later)
    planned = {table.name: what.plan(table) for table in what.tables()}
    assert (planned[ASIDE].abandoned, planned[TABLE].abandoned) == (True, False)
    assert plan_text(planned[ASIDE]) == f"{ASIDE}: built by a rebuild that is over, removed as a whole"
    done = maintain(lake, retention=week, pace=later)
    assert "built by a rebuild that is over, removed (" in done_text(done[ASIDE])
    assert not Path(lake.table_path(ASIDE)).exists() or not list(Path(lake.table_path(ASIDE)).rglob("*.parquet"))
    assert ASIDE not in maintain(lake, retention=week, pace=later)
    assert len(rows(lake)) == 3
