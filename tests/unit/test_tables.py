"""Real Delta tables in a folder, read without a JVM."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import open_epoch
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.lake.tables import watermarks
from spark_jobs.lake.tables.appends import append_rows
from spark_jobs.lake.tables.inventory import summaries
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_ingest, write


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


def at(minute, microsecond=0):
    return datetime(2024, 3, 1, 12, minute, 0, microsecond, UTC)


def times(*values):
    return pa.array(values, pa.timestamp("us", "UTC"))


def us(instant):
    return round(instant.timestamp() * 1_000_000)


class TestNewestBeside:
    """Events have a number, heartbeats have none; the oracle is written beside each."""

    def newest(self, lake):
        return tables.newest_beside(tables.open_table(lake, "bronze.a"), "t", "seq")

    def append(self, lake, numbers, *instants):
        write(lake, "bronze.a", {"t": times(*instants), "seq": pa.array(numbers, pa.int64())})

    def test_each_kind_is_found_in_its_own_files(self, lake):
        self.append(lake, [1, 2], at(3), at(1))
        assert self.newest(lake) == (us(at(3)), None)
        self.append(lake, [None], at(9))
        self.append(lake, [3], at(2))
        self.append(lake, [None], at(7))
        assert self.newest(lake) == (us(at(3)), us(at(9)))

    def test_rows_without_a_time_are_behind_all_others(self, lake):
        self.append(lake, [1, 2], None, None)
        assert self.newest(lake) == (None, None)
        self.append(lake, [3, 4], at(5), None)
        assert self.newest(lake) == (us(at(5)), None)

    def test_a_file_with_rows_of_both_kinds_does_not_tell(self, lake):
        self.append(lake, [1], at(3))
        self.append(lake, [2, None], at(4), at(5))
        assert self.newest(lake) is None

    def test_columns_without_statistics_do_not_tell(self, lake):
        write(lake, "bronze.a", {"t": times(at(1)), "other": [1]})
        assert self.newest(lake) is None

    def test_a_table_without_files_does_not_tell(self, lake):
        self.append(lake, [])
        assert self.newest(lake) is None

    def test_what_is_no_time_does_not_tell(self, lake):
        write(lake, "bronze.a", {"t": ["2024-03-01"], "seq": [1]})
        assert self.newest(lake) is None


class TestNames:
    def test_an_empty_lake_has_no_tables(self, lake):
        assert tables.table_names(lake) == ()

    def test_tables_come_in_order_of_layer_and_name_side_tables_included(self, lake):
        for name in ("gold.b", "ops.watermarks", "bronze.z", "gold.a__late", "bronze.z__quarantine", "silver.s"):
            write(lake, name, {"n": [1]})
        assert tables.table_names(lake) == (
            "bronze.z",
            "bronze.z__quarantine",
            "silver.s",
            "gold.a__late",
            "gold.b",
            "ops.watermarks",
        )

    def test_what_is_no_delta_table_is_none_of_them(self, lake):
        write(lake, "gold.a", {"n": [1]})
        Path(lake.uri, "gold", "notes").mkdir()
        Path(lake.uri, "gold", "readme.txt").write_text("no table")
        Path(lake.uri, "landing", "_delta_log").mkdir(parents=True)
        assert tables.table_names(lake) == ("gold.a",)

    def test_a_table_exists_once_it_was_written(self, lake):
        assert not tables.exists(lake, "gold.a")
        write(lake, "gold.a", {"n": [1]})
        assert tables.exists(lake, "gold.a")

    def test_a_missing_table_is_named_with_its_lake(self, lake):
        with pytest.raises(MissingTableError) as missing:
            tables.open_table(lake, "gold.nothing")
        assert "gold.nothing" in str(missing.value)
        assert lake.uri in str(missing.value)

    def test_a_table_with_a_broken_log_is_named_in_one_line(self, lake):
        write(lake, "gold.a", {"n": [1]})
        Path(lake.uri, "gold", "a", "_delta_log", f"{0:020}.json").write_text("no json")
        with pytest.raises(LakeUnavailableError, match=r"^table gold\.a: in the lake .* cannot be read: .*$") as broken:
            tables.table_names(lake)
        assert broken.value.exit_code == 75


class TestContent:
    def test_rows_are_counted_over_all_files(self, lake):
        for n in range(3):
            write(lake, "gold.a", {"n": list(range(n + 1))})
        assert tables.row_count(tables.open_table(lake, "gold.a")) == 1 + 2 + 3

    def test_a_table_without_files_has_no_rows(self, lake):
        write(lake, "gold.a", pa.table({"n": pa.array([], pa.int64()), "at": times()}))
        table = tables.open_table(lake, "gold.a")
        assert tables.row_count(table) == 0
        assert tables.newest(table, "at") is None

    def test_an_overwritten_table_counts_only_what_is_left(self, lake):
        write(lake, "gold.a", {"n": [1, 2, 3]})
        write(lake, "gold.a", {"n": [4]}, mode="overwrite")
        assert tables.row_count(tables.open_table(lake, "gold.a")) == 1

    def test_an_earlier_version_is_what_it_was(self, lake):
        write(lake, "gold.a", {"n": [1]})
        write(lake, "gold.a", {"n": [2, 3]})
        assert tables.row_count(tables.open_table(lake, "gold.a", version=0)) == 1

    def test_the_newest_time_is_the_greatest_of_all_files_in_milliseconds(self, lake):
        write(lake, "bronze.a", {"at": times(at(5), at(9, microsecond=1999), None)})
        write(lake, "bronze.a", {"at": times(at(7))})
        write(lake, "bronze.a", {"at": times(None)})
        assert tables.newest(tables.open_table(lake, "bronze.a"), "at") == at(9, microsecond=1000)

    def test_without_such_a_column_there_is_no_newest(self, lake):
        write(lake, "bronze.a", {"n": [1]})
        assert tables.newest(tables.open_table(lake, "bronze.a"), "at") is None


class TestWatermarks:
    def publish(self, lake, pipeline, engine_ms, **others):
        known = {"table": f"gold.{pipeline}", "grace_ms": 0, "epoch": 1, "batch_id": 0}
        watermarks.publish(lake, pipeline=pipeline, engine_ms=engine_ms, **(known | others))

    def test_before_the_first_there_are_none(self, lake):
        assert watermarks.published(lake) == {}

    def test_the_published_one_is_the_engines_and_grace(self, lake):
        self.publish(lake, "sales", 60_000, grace_ms=5_000)
        assert watermarks.published(lake) == {"sales": datetime(1970, 1, 1, 0, 1, 5, tzinfo=UTC)}

    def test_publishing_again_leaves_one_row_a_pipeline_the_newest(self, lake):
        self.publish(lake, "sales", 1_000)
        self.publish(lake, "visits", 2_000)
        self.publish(lake, "sales", 3_000, batch_id=7)
        rows = tables.open_table(lake, "ops.watermarks").to_pyarrow_table().to_pylist()
        assert sorted((row["pipeline"], row["watermark"].timestamp(), row["batch_id"]) for row in rows) == [
            ("sales", 3.0, 7),
            ("visits", 2.0, 0),
        ]

    def test_many_drivers_publish_at_once_and_none_is_lost_or_fails(self, lake):
        drivers, times_each = 3, 3
        barrier = Barrier(drivers)

        def publish(driver):
            barrier.wait()
            for second in range(1, times_each + 1):
                self.publish(lake, f"p{driver}", second * 1_000)

        with ThreadPoolExecutor(drivers) as pool:
            list(pool.map(publish, range(drivers)))
        found = {name: time.timestamp() for name, time in watermarks.published(lake).items()}
        assert found == {f"p{driver}": float(times_each) for driver in range(drivers)}

    def test_a_new_epoch_may_publish_an_earlier_one(self, lake):
        self.publish(lake, "sales", 9_000)
        self.publish(lake, "sales", 1_000, epoch=2)
        assert watermarks.published(lake)["sales"].timestamp() == 1.0

    def test_a_driver_of_an_epoch_that_is_over_publishes_nothing(self, lake):
        self.publish(lake, "sales", 9_000)
        watermarks.withdraw(lake, pipeline="sales", table="gold.sales", epoch=2)
        assert watermarks.published(lake) == {}
        self.publish(lake, "sales", 9_000, epoch=1)
        assert watermarks.published(lake) == {}
        self.publish(lake, "sales", 1_000, epoch=2)
        assert watermarks.published(lake)["sales"].timestamp() == 1.0


class TestSummaries:
    def test_an_empty_lake_has_none(self, lake):
        assert summaries(lake, {}) == ()

    def test_bronze_tells_its_newest_event(self, lake):
        write(lake, "bronze.sales", {"sold_at": times(at(1), at(2))})
        write(lake, "bronze.sales", {"sold_at": times(at(0))})
        (summary,) = summaries(lake, {"ingest_sales": an_ingest()})
        assert (summary.table, summary.rows, summary.files, summary.newest_event) == ("bronze.sales", 3, 2, at(2))
        assert (summary.watermark, summary.late_share) == (None, None)
        on_disk = sum(path.stat().st_size for path in Path(lake.uri, "bronze", "sales").glob("*.parquet"))
        assert summary.size_bytes == on_disk

    def test_a_heartbeat_is_no_event(self, lake):
        columns = {"sold_at": times(at(1)), "_ingest_seq": pa.array([0], pa.int64())}
        write(lake, "bronze.sales", columns)
        write(lake, "bronze.sales", columns | {"sold_at": times(at(9)), "_ingest_seq": pa.array([None], pa.int64())})
        (summary,) = summaries(lake, {"ingest_sales": an_ingest()})
        assert summary.newest_event == at(1)

    def test_a_result_tells_how_far_it_is_final_and_how_much_came_late(self, lake):
        pipeline = a_pipeline()
        open_epoch(lake, pipeline)
        row = a_batch(20, on_time=15, partly_late=2, late=3)
        write(lake, "gold.hourly_sales", {"window_end": times(at(30))}, stamp=a_stamp(ledger=row))
        other = a_batch(1000, on_time=0, late=1000)
        write(lake, "gold.hourly_sales", {"window_end": times(at(20))}, stamp=a_stamp(epoch=9, ledger=other))
        engine_ms = int(at(40).timestamp() * 1000)
        watermarks.publish(
            lake, pipeline="hourly_sales", table="gold.x", engine_ms=engine_ms, grace_ms=0, epoch=1, batch_id=0
        )
        (summary, _) = summaries(lake, {"hourly_sales": pipeline})
        assert (summary.newest_event, summary.watermark, summary.late_share) == (at(30), at(40), 0.25)

    def test_a_table_that_nothing_registered_writes_is_still_listed(self, lake):
        write(lake, "gold.foreign", {"n": [1, 2]})
        (summary,) = summaries(lake, {})
        assert (summary.table, summary.rows, summary.newest_event) == ("gold.foreign", 2, None)

    @pytest.mark.parametrize("damaged", ["bronze.sales", "ops.watermarks"])
    def test_a_table_that_cannot_be_read_hides_no_other(self, lake, damaged):
        write(lake, "bronze.sales", {"n": [1]})
        watermarks.publish(lake, pipeline="p", table="gold.x", engine_ms=0, grace_ms=0, epoch=1, batch_id=0)
        layer, short = damaged.split(".")
        Path(lake.uri, layer, short, "_delta_log", f"{0:020}.json").write_text("{no JSON")
        found = {summary.table: summary for summary in summaries(lake, {})}
        assert {name for name, summary in found.items() if summary.unreadable} == {damaged}
        assert f"table {damaged}: " in found[damaged].unreadable
        assert sum(summary.rows for summary in found.values()) == 1

    @pytest.mark.parametrize("damage", ["gone", "cut"])
    def test_a_table_of_watermarks_without_its_data_hides_no_other(self, lake, damage):
        write(lake, "bronze.sales", {"n": [1]})
        watermarks.publish(lake, pipeline="p", table="gold.x", engine_ms=0, grace_ms=0, epoch=1, batch_id=0)
        (file,) = Path(lake.uri, "ops", "watermarks").glob("*.parquet")
        file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-20])
        assert [summary.table for summary in summaries(lake, {})] == ["bronze.sales", "ops.watermarks"]


class TestTablesOfManyWriters:
    @pytest.mark.parametrize("table", ["ops.metrics", "ops.watermarks"])
    def test_of_several_that_write_the_first_rows_at_once_one_makes_the_table(self, lake, table):
        writers = 4
        barrier = Barrier(writers, timeout=60)

        def write_first(number):
            barrier.wait()
            if table == "ops.metrics":
                append_rows(lake, table, pa.table({"n": [number]}))
            else:
                watermarks.publish(
                    lake, pipeline=f"p{number}", table="gold.x", engine_ms=0, grace_ms=0, epoch=1, batch_id=0
                )

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write_first, range(writers)))
        log = Path(lake.table_uri(table), "_delta_log").glob("*.json")
        assert sum('"metaData"' in commit.read_text() for commit in log) == 1
        assert tables.row_count(tables.open_table(lake, table)) == writers


class TestRowsWithout:
    def test_nulls_are_a_key_and_each_key_comes_once(self):
        def rows(*pairs):
            return pa.table({"k": pa.array([k for k, _ in pairs], pa.string()), "n": [n for _, n in pairs]})

        held = rows(("a", 1), (None, 1), ("b", 1), ("b", 1), ("c", 1), ("c", 2))
        found = tables.rows_without(held, rows(("a", 9), (None, 9)), ["k"])
        assert sorted(found.column("k").to_pylist()) == ["b", "c"]
        assert tables.rows_without(held, held, ["k", "n"]).num_rows == 0


class TestRowsByValue:
    @pytest.fixture
    def numbered(self, lake):
        for first in (0, 10, 20):
            seqs = [*range(first, first + 10), None]
            write(lake, "bronze.sales", {"seq": pa.array(seqs, pa.int64()), "text": [f"row {seq}" for seq in seqs]})
        return lake

    def test_exactly_the_rows_with_the_values_come(self, numbered):
        found = tables.rows_holding(numbered, "bronze.sales", "seq", [3, 4, 27, 99])
        assert sorted(found.column("text").to_pylist()) == ["row 27", "row 3", "row 4"]

    def test_a_folder_called_like_a_column_and_a_value_changes_none(self, tmp_path):
        lake = Lake(str(tmp_path / "text=berlin" / "other=1")).ensure_exists()
        write(lake, "bronze.sales", {"seq": pa.array([1, 2], pa.int64()), "text": ["one", "two"]})
        found = tables.rows_holding(lake, "bronze.sales", "seq", [2])
        assert found.to_pylist() == [{"seq": 2, "text": "two"}]

    def test_only_files_that_may_hold_them_are_read(self, numbered):
        table = tables.open_table(numbered, "bronze.sales")
        held = tables.files_holding(table, "seq", [3, 4, 27])
        for path in set(table.file_uris()) - {f"{numbered.table_path('bronze.sales')}/{name}" for name in held}:
            Path(path.removeprefix("file://")).unlink()
        assert len(held) == 2
        assert tables.rows_holding(numbered, "bronze.sales", "seq", [3, 4, 27]).num_rows == 3

    def test_a_file_without_statistics_may_hold_them(self, numbered):
        log = Path(numbered.uri, "bronze", "sales", "_delta_log", f"{1:020}.json")
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        log.write_text("\n".join(json.dumps(action) for action in actions))
        found = tables.rows_holding(numbered, "bronze.sales", "seq", [3, 13])
        assert sorted(found.column("text").to_pylist()) == ["row 13", "row 3"]

    def test_a_file_that_has_no_value_is_left_out(self, numbered):
        write(numbered, "bronze.sales", {"seq": pa.array([None], pa.int64()), "text": ["heartbeat"]})
        table = tables.open_table(numbered, "bronze.sales")
        assert len(tables.files_holding(table, "seq", range(-100, 100))) == 3

    @pytest.mark.parametrize("first_is_sparks", [True, False])
    def test_times_depend_neither_on_the_writer_nor_on_the_time_zone(self, lake, monkeypatch, first_is_sparks):
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        try:
            for number in range(2):
                write(lake, "bronze.sales", {"seq": pa.array([number], pa.int64()), "at": times(at(number))})
            path = tables.open_table(lake, "bronze.sales").file_uris()[1 if first_is_sparks else 0]
            content = pq.read_table(path)
            # Spark writes times without a zone, in the type that Parquet calls INT96.
            pq.write_table(content, path, use_deprecated_int96_timestamps=True)
            found = tables.rows_holding(lake, "bronze.sales", "seq", [0, 1]).sort_by("seq")
        finally:
            monkeypatch.undo()
            time.tzset()
        assert found.column("at").to_pylist() == [at(0), at(1)]

    def test_threads_read_beside_each_other_and_nothing_stays_in_memory(self, numbered):
        def text_of(seq):
            return tables.rows_holding(numbered, "bronze.sales", "seq", [seq]).column("text").to_pylist()

        with ThreadPoolExecutor(8) as threads:
            assert [*threads.map(text_of, range(30))] == [[f"row {seq}"] for seq in range(30)]
        # A driver lives for months, and reads new files all the time.
        held = tables._database().execute("SELECT tag FROM duckdb_memory() WHERE memory_usage_bytes > 0").fetchall()
        assert held == []

    def test_without_a_file_that_may_hold_them_there_are_no_rows_but_columns(self, numbered):
        assert tables.rows_holding(numbered, "bronze.sales", "seq", [77]).column_names == ["seq", "text"]


class TestCheckpointsOfTheLog:
    def append_until(self, lake, table, commits):
        rows = pa.table({"n": pa.array([1], pa.int64())})
        for _ in range(commits):
            append_rows(lake, table, rows)

    def test_the_last_few_stay_and_the_table_is_whole(self, lake, monkeypatch):
        monkeypatch.setattr(tables, "CHECKPOINT_INTERVAL", 3)
        monkeypatch.setattr(tables, "_WIDER_INTERVAL", 9)
        self.append_until(lake, "ops.metrics", 80)
        log = Path(lake.uri, "ops/metrics/_delta_log")
        kept = sorted(int(path.name.split(".")[0]) for path in log.glob("*.checkpoint.parquet"))
        assert len(kept) <= 11
        assert [later - before for before, later in pairwise(kept[-5:])] == [3] * 4
        assert max(later - before for before, later in pairwise(kept)) == 9, "older ones are further apart"
        assert 80 - 9 * 6 <= min(kept) <= 80 - 9 * 4
        assert json.loads((log / "_last_checkpoint").read_text())["version"] == max(kept)
        assert len(list(log.glob("*.json"))) == 81, "commits stay: the ledger lives in them"
        assert tables.row_count(tables.open_table(lake, "ops.metrics")) == 80
        # From before the oldest checkpoint that is left.
        assert tables.row_count(tables.open_table(lake, "ops.metrics", version=4)) == 4
