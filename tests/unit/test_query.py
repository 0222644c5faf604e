"""SQL over the tables of a real lake."""

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.lake.tables import query, watermarks
from spark_jobs.lake.tables.query import QueryError
from tests.support.builders import a_lake, write

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


def revised(*minutes):
    times = [NOON + timedelta(minutes=minute) for minute in minutes]
    return pa.table({"n": list(minutes), "final_after": pa.array(times, pa.timestamp("us", "UTC"))})


def published(lake, table, *, engine_minute, grace_minutes=0, pipeline="sales"):
    engine_ms = int((NOON + timedelta(minutes=engine_minute)).timestamp() * 1000)
    grace_ms = grace_minutes * 60_000
    watermarks.publish(
        lake, pipeline=pipeline, table=table, engine_ms=engine_ms, grace_ms=grace_ms, epoch=1, batch_id=0
    )


def final(lake, table):
    return dict(query.run(lake, f"SELECT n, is_final FROM {table} ORDER BY n")[1])


class TestTables:
    def test_every_table_is_there_under_its_own_name(self, lake):
        write(lake, "gold.sales", {"product": ["a", "b"], "units": [1, 2]})
        write(lake, "gold.sales__late", {"units": [3]})
        write(lake, "bronze.sales", {"units": [4]})
        columns, rows = query.run(
            lake,
            "SELECT (SELECT sum(units) FROM gold.sales) AS on_time, (SELECT sum(units) FROM gold.sales__late) AS late, "
            "(SELECT sum(units) FROM bronze.sales) AS all_of_them",
        )
        assert columns == ["on_time", "late", "all_of_them"]
        assert rows == [(3, 3, 4)]

    def test_the_newest_version_is_what_is_queried(self, lake):
        write(lake, "gold.a", {"n": [1, 2]})
        write(lake, "gold.a", {"n": [3]}, mode="overwrite")
        assert query.run(lake, "SELECT n FROM gold.a")[1] == [(3,)]

    def test_times_are_utc(self, lake):
        write(lake, "gold.a", revised(0))
        assert query.run(lake, "SELECT CAST(final_after AS VARCHAR) FROM gold.a")[1] == [("2024-03-01 12:00:00+00",)]
        assert query.run(lake, "SELECT final_after FROM gold.a")[1] == [(NOON,)]

    def test_lakes_in_folders_with_unusual_names_can_be_queried(self, tmp_path):
        lake = a_lake(tmp_path / "my größe's #lake")
        write(lake, "gold.a", {"n": [1]})
        assert query.run(lake, "SELECT n FROM gold.a")[1] == [(1,)]


class TestFinality:
    def test_rows_are_final_up_to_the_published_watermark_and_at_it(self, lake):
        write(lake, "gold.a", revised(5, 6, 7))
        published(lake, "gold.a", engine_minute=6)
        assert final(lake, "gold.a") == {5: True, 6: True, 7: False}

    def test_the_published_watermark_has_the_grace_in_it(self, lake):
        write(lake, "gold.a", revised(6, 8, 9))
        published(lake, "gold.a", engine_minute=6, grace_minutes=2)
        assert final(lake, "gold.a") == {6: True, 8: True, 9: False}

    def test_nothing_is_final_before_a_watermark_is_published(self, lake):
        write(lake, "gold.a", revised(5))
        assert final(lake, "gold.a") == {5: False}

    def test_the_watermark_of_another_table_makes_nothing_final(self, lake):
        write(lake, "gold.a", revised(5))
        published(lake, "gold.b", engine_minute=60)
        assert final(lake, "gold.a") == {5: False}

    def test_the_groups_of_a_ranking_are_as_final_as_their_table(self, lake):
        write(lake, "gold.a__groups", revised(5, 7))
        published(lake, "gold.a", engine_minute=6)
        assert final(lake, "gold.a__groups") == {5: True, 7: False}

    def test_tables_that_are_never_revised_do_not_say(self, lake):
        write(lake, "gold.a", {"n": [1]})
        assert query.run(lake, "SELECT * FROM gold.a")[0] == ["n"]


class TestRefusals:
    @pytest.mark.parametrize("sql", ["SELEC 1", "SELECT * FROM gold.nothing", "SELECT nothing FROM gold.a"])
    def test_bad_sql_is_told_with_the_tables_that_there_are(self, lake, sql):
        write(lake, "gold.a", {"n": [1]})
        write(lake, "bronze.b", {"n": [1]})
        with pytest.raises(QueryError) as refused:
            query.run(lake, sql)
        assert repr(sql) in str(refused.value)
        assert f"Tables of {lake.uri}: bronze.b, gold.a." in str(refused.value)

    def test_a_table_that_cannot_be_read_is_no_trouble_of_the_others(self, lake):
        """As one with a damaged log, or with a feature of Delta that only its writer knows."""
        for name in ("gold.a", "gold.damaged", "gold.foreign"):
            write(lake, name, {"n": [1]})
        Path(lake.uri, "gold/damaged/_delta_log", f"{0:020}.json").write_text("no json")
        log = Path(lake.uri, "gold/foreign/_delta_log", f"{0:020}.json")
        features = {"minReaderVersion": 3, "minWriterVersion": 7}
        both = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        changed = [{"protocol": features | both} if "protocol" in line else line for line in lines]
        log.write_text("\n".join(map(json.dumps, changed)))
        assert query.run(lake, "SELECT n FROM gold.a")[1] == [(1,)]
        with pytest.raises(QueryError, match=r"Tables of .*: gold\.a\. Left out: gold\.damaged \(.*gold\.foreign \("):
            query.run(lake, "SELECT * FROM gold.foreign")

    def test_an_empty_lake_says_that_it_has_none_yet(self, lake):
        with pytest.raises(QueryError, match="none yet"):
            query.run(lake, "SELECT * FROM gold.a")

    @pytest.mark.parametrize("sql", ["", "  ", "-- nothing"])
    def test_no_statement_is_refused(self, lake, sql):
        with pytest.raises(QueryError, match="expected a SQL statement"):
            query.run(lake, sql)


class TestFiles:
    """A query comes from whoever may ask one, as by way of a dashboard, and reaches the lake alone."""

    @pytest.fixture
    def outside(self, tmp_path, lake):
        write(lake, "gold.a", {"n": [1, 2]})
        folder = tmp_path / "outside"
        folder.mkdir()
        (folder / "secret.csv").write_text("password\n4f2c91\n")
        return folder

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT * FROM read_csv('{outside}/secret.csv')",
            "SELECT * FROM '{outside}/secret.csv'",
            "SELECT * FROM read_text('/proc/self/environ')",
            "SELECT * FROM glob('{outside}/*')",
            "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
            "COPY (SELECT * FROM gold.a) TO '{outside}/written.csv'",
            "COPY gold.a TO '{outside}/written.parquet'",
            "EXPORT DATABASE '{outside}/written'",
            "ATTACH '{outside}/written.db'",
            "INSTALL httpfs",
            "LOAD httpfs",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "SET allowed_directories = ['/']",
            "SET temp_directory = '{outside}'",
            "SET enable_external_access = true; SELECT * FROM read_csv('{outside}/secret.csv')",
            "CALL enable_logging(storage='file', storage_path='{outside}/written'); SELECT 1",
            "SET profiling_output = '{outside}/written'; SELECT 1",
        ],
    )
    def test_whatever_reaches_out_is_refused_with_the_option_that_allows_it(self, lake, outside, sql):
        with pytest.raises(QueryError) as refused:
            query.run(lake, sql.format(outside=outside))
        assert "tidemark sql --allow-files" in str(refused.value)
        assert "4f2c91" not in str(refused.value)
        assert [path.name for path in outside.iterdir()] == ["secret.csv"]

    def test_a_variable_of_this_process_is_no_table(self, lake, monkeypatch):
        monkeypatch.setitem(globals(), "a_variable", pa.table({"n": [1]}))
        with pytest.raises(QueryError, match="a_variable"):
            query.run(lake, "SELECT * FROM a_variable")

    def test_where_it_is_asked_for_files_are_read_and_written(self, lake, outside):
        copied = f"COPY (SELECT sum(n) AS n FROM gold.a) TO '{outside}/written.csv'"
        query.run(lake, copied, allow_files=True)
        assert (outside / "written.csv").read_text() == "n\n3\n"
        assert query.run(lake, f"SELECT * FROM read_csv('{outside}/secret.csv')", allow_files=True)[1] == [("4f2c91",)]

    def test_the_command_asks_for_them_by_its_option(self, lake, outside):
        asked = ["sql", f"SELECT * FROM read_csv('{outside}/secret.csv')", "--lake", lake.uri]
        refused = CliRunner().invoke(app, asked)
        assert isinstance(refused.exception, QueryError)
        assert "4f2c91" in CliRunner().invoke(app, [*asked, "--allow-files"]).output

    def test_what_does_not_fit_in_memory_is_computed_and_leaves_no_file(self, lake, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        (tmp_path / "scratch").mkdir()
        connect = duckdb.connect
        small = {"memory_limit": "60MB", "threads": 1}
        monkeypatch.setattr(duckdb, "connect", lambda config: connect(config=config | small))
        # 60 MB of text are sorted in as much memory: DuckDB refuses it where it may not put some of it aside.
        rows = "SELECT hash(range) AS h, repeat(range::VARCHAR, 20) AS s FROM range(500000)"
        sorted_rows = f"SELECT row_number() OVER (ORDER BY h, s) AS x, s FROM ({rows})"
        assert query.run(lake, f"SELECT count(*), max(x), max(length(s)) FROM ({sorted_rows})")[1] == [
            (500_000, 500_000, 120)
        ]
        assert list((tmp_path / "scratch").iterdir()) == []
