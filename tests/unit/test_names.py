"""Names and values that are words of SQL, or more than that: each engine takes them for what they are."""

from __future__ import annotations

import ast
import io
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructField, StructType, TimestampType
from rich.console import Console
from sqlglot import exp
from typer.testing import CliRunner

from spark_jobs import spec
from spark_jobs.cli import app
from spark_jobs.cli.terminal import complain
from spark_jobs.commits.changes import GONE, ReplaceWindows, Revise, Upsert
from spark_jobs.commits.merging import CommitId
from spark_jobs.commits.small import SmallCommits
from spark_jobs.commits.tables import create_table
from spark_jobs.console.reports import print_late
from spark_jobs.engine.heartbeats import event_times
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.repaired import late_rows, mark_repaired
from spark_jobs.lake.checkpoints.lineage import Lineage
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.opening import file_statistics, open_table, table_names
from spark_jobs.plan.columns import given_to_events
from spark_jobs.plan.logical import build
from spark_jobs.plan.windowing import windowing_of
from spark_jobs.quality.checking import check
from spark_jobs.quality.profiling import ColumnProfile, Profile, profile, row_proposals, table_proposals
from spark_jobs.spec import (
    Between,
    Deduplicate,
    DefinitionError,
    Files,
    Fresh,
    Hopping,
    Join,
    Late,
    Matches,
    NotNull,
    OneOf,
    Referential,
    Select,
    Session,
    Sink,
    Table,
    Tumbling,
    Unique,
    Volume,
    Watermark,
    Where,
)
from spark_jobs.spec.names import (
    column_named,
    first_of,
    in_delta,
    in_duckdb,
    in_property,
    in_spark,
    text_in_duckdb,
    text_in_spark,
    visible,
    visible_line,
)
from spark_jobs.spec.rules import RowRule
from tests.support.builders import a_lake, a_pipeline, an_aggregate, an_ingest, write
from tests.support.lakes import a_file

WORDS = (
    *("when", "at", "end", "order", "offset", "window", "table", "column", "desc", "from", "case", "values"),
    *("added", "others", "t", "i", "n", "times", "gap", "Order2"),
)
SIGNS = ("@timestamp", "event-time", "event:time", 'say"')
NAMES = (*WORDS, *SIGNS)
"""Names that a definition may give."""
FOREIGN = (*NAMES, "order id", "a.b", "a,b", "`", "*", "'", "x\\y")
"""Names that only a table of another program has."""

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
ESC = "\x1b[2J"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


def invoked(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.output


class TestQuotes:
    @pytest.mark.parametrize("name", FOREIGN)
    def test_duckdb_takes_a_name_for_a_name(self, name: str) -> None:
        with duckdb.connect() as connection:
            connection.register("rows", pa.table({name: [7], "other": [8]}))
            found = connection.execute(f"SELECT {in_duckdb(name)} FROM rows WHERE {in_duckdb(name)} = 7").fetchall()
        assert found == [(7,)]

    @pytest.mark.parametrize("name", FOREIGN)
    @pytest.mark.parametrize(("quoted", "dialect"), [(in_spark, "spark"), (in_duckdb, "duckdb")])
    def test_a_parser_takes_a_name_for_a_column(self, name: str, quoted: Any, dialect: str) -> None:
        tree = sqlglot.parse_one(quoted(name), dialect=dialect)
        assert isinstance(tree, exp.Column)
        assert [part.name for part in tree.parts] == [name]

    @pytest.mark.parametrize("name", FOREIGN)
    def test_deltalake_takes_a_name_for_a_name(self, name: str, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({name: [7, 8]}))
        assert DeltaTable(tmp_path).delete(f"{in_delta(name)} = 7")["num_deleted_rows"] == 1

    @pytest.mark.parametrize("text", ["it's", 'say"', "a\\b", "'; DROP TABLE a; --", "\\'", ""])
    def test_a_text_is_a_literal(self, text: str) -> None:
        with duckdb.connect() as connection:
            assert connection.execute(f"SELECT {text_in_duckdb(text)}").fetchall() == [(text,)]
        tree = sqlglot.parse_one(text_in_spark(text), dialect="spark")
        assert (type(tree), tree.name) == (exp.Literal, text)

    @pytest.mark.parametrize(
        ("sql", "name"),
        [
            ("at", "at"),
            (" `event-time` ", "event-time"),
            ("`a``b`", "a`b"),
            ("größe", "größe"),
            ("`a`.`b`", None),
            ("a.b", None),
            ("event-time", None),
            ("upper(a)", None),
            ("null", None),
            ("'a'", None),
        ],
    )
    def test_an_expression_that_is_a_name_is_told(self, sql: str, name: str | None) -> None:
        assert column_named(sql) == name

    def test_the_first_of_several_columns(self) -> None:
        assert first_of(["at"], in_spark) == "`at`"
        assert first_of(["at", 'say"'], in_duckdb) == 'coalesce("at", "say""")'

    @pytest.mark.parametrize("name", NAMES)
    def test_rules_are_conditions_on_the_column(self, name: str) -> None:
        rules: list[RowRule] = [NotNull(name), Between(name, min=1), OneOf(name, ("a'", "b\\")), Matches(name, "a.*")]
        for rule in rules:
            assert {
                column.name for column in sqlglot.parse_one(rule.condition, dialect="spark").find_all(exp.Column)
            } == {name}


class TestTerminals:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("größe\t☃\n", "größe\t☃\n"),
            ("\x1b[31m\x07\x08\r\x00\x7f", "␛[31m␇␈␍␀␡"),
            ("\x9b2J", "\\u009b2J"),
            ("a\u202eb\u2066", "a\\u202eb\\u2066"),
            ("\udcff", "\\udcff"),
        ],
    )
    def test_control_characters_are_visible(self, text: str, shown: str) -> None:
        assert visible(text) == shown

    def test_a_line_stays_one(self) -> None:
        assert visible_line("a\nbalanced\t") == "a␊balanced␉"

    def test_sql_obeys_nothing_in_values_and_names(self, lake: Lake) -> None:
        write(lake, "gold.a", {f"n{ESC}": [f"a{ESC}b\r"]})
        shown = invoked("sql", "SELECT * FROM gold.a", "--lake", lake.uri)
        assert "\x1b" not in shown
        assert "\r" not in shown
        assert "a␛[2Jb␍" in shown

    def test_an_error_obeys_nothing_of_the_query(self, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
        complain(f"query {ESC}")
        assert "\x1b" not in capsys.readouterr().err

    def test_late_events_are_shown_without_obeying(self, lake: Lake) -> None:
        write(lake, "gold.hourly_sales__late", late("product_id", product_id=[ESC]))
        shown = invoked("late", a_file(Path(lake.uri), a_pipeline()), "--lake", lake.uri)
        assert "\x1b" not in shown
        assert "␛[2J" in shown

    def test_quarantined_rows_are_shown_without_obeying(self, lake: Lake) -> None:
        raw = f'{{"a": "{ESC}\nbalanced"}}'
        row = {"reason": [f"r{ESC}"], "detail": [ESC], "raw": [raw], "_ingest_time": pa.array([NOON], TIME)}
        write(lake, "bronze.sales__quarantine", {**row, "_epoch": [1], "_batch_id": [0]})
        shown = invoked("quarantine", a_file(Path(lake.uri), an_ingest()), "--lake", lake.uri)
        assert "\x1b" not in shown
        assert "\nbalanced" not in shown
        assert shown.count("␛[2J") >= 3

    def test_profiles_and_checks_obey_nothing(self, lake: Lake) -> None:
        times = pa.array([NOON + timedelta(minutes=n) for n in range(40)], TIME)
        write(lake, "gold.hourly_sales", {"product_id": [f"x{ESC}"] * 40, "units": [-1] * 40, "sold_at": times})
        shown = invoked("profile", "gold.hourly_sales", "--lake", lake.uri)
        assert "\x1b" not in shown
        assert "␛[2J" in shown
        assert "OneOf(\"product_id\", ('x\\x1b[2J',))," in shown
        definition = a_pipeline(expectations=(OneOf("product_id", ("a",)), Unique("product_id")))
        done = CliRunner().invoke(app, ["check", a_file(Path(lake.uri), definition), "--lake", lake.uri])
        assert "BROKEN" in done.output
        assert "\x1b" not in done.output


class TestFolders:
    """Whoever may write to a lake can make a folder; whoever asks it runs none of it."""

    SQL = (
        "x\" AS SELECT 1; COPY (SELECT 1) TO '{out}'; --",
        "x\"; COPY (SELECT content FROM read_text('{secret}')) TO '{out}'; CREATE VIEW gold.\"y",
    )

    @pytest.fixture(params=SQL)
    def hostile(
        self, lake: Lake, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> str:
        """The name of a folder, which has no slash."""
        monkeypatch.chdir(tmp_path)
        Path("secret").write_text("4f2c91")
        name = request.param.format(out="out", secret="secret")
        write(lake, "gold.a", {"n": [1]})
        shutil.copytree(f"{lake.uri}/gold/a", f"{lake.uri}/gold/{name}")
        return name

    @pytest.mark.parametrize("allow_files", [False, True])
    def test_one_whose_name_is_sql_is_left_out_and_named(
        self, lake: Lake, hostile: str, allow_files: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert query.run(lake, "SELECT n FROM gold.a", allow_files=allow_files)[1] == [(1,)]
        assert not Path("out").exists()
        assert [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
        assert any(f"gold/{hostile}".replace("'", "\\'") in each.getMessage() for each in caplog.records)

    def test_no_command_runs_it(self, lake: Lake, hostile: str) -> None:
        invoked("profile", "gold.a", "--lake", lake.uri)
        invoked("tables", "--lake", lake.uri)
        invoked("sql", "SELECT * FROM gold.a", "--lake", lake.uri)
        assert table_names(lake) == ("gold.a",)
        assert not Path("out").exists()

    @pytest.mark.parametrize("name", [f"x{ESC}", "a b", "a.b", "a'b", "a\nb", "-", ""])
    def test_one_that_no_table_is_called_is_no_trouble_of_others(
        self, lake: Lake, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        write(lake, "gold.a-1", {"n": [1]})
        if name:
            shutil.copytree(f"{lake.uri}/gold/a-1", f"{lake.uri}/gold/{name}")
        assert query.run(lake, 'SELECT n FROM gold."a-1"')[1] == [(1,)]
        assert "\x1b" not in caplog.text
        assert len(caplog.records) == bool(name)

    def test_two_that_differ_in_case_are_told(self, lake: Lake) -> None:
        for name in ("gold.Sales", "gold.sales"):
            write(lake, name, {"n": [1]})
        assert query.run(lake, "SELECT n FROM gold.sales")[1] == [(1,)]
        with pytest.raises(
            query.QueryError, match=r"Left out: gold\.sales \(DuckDB does not tell it apart from gold\.S"
        ):
            query.run(lake, "SELECT nothing FROM gold.sales")

    def test_a_connection_is_confined_before_it_reads_a_name(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also one that made its way past what a table may be called."""
        write(lake, "gold.a", {"n": [1]})
        seen = []

        def made(connection: duckdb.DuckDBPyConnection, _: object) -> None:
            seen.append(connection.execute("SELECT current_setting('enable_external_access')").fetchall())
            with pytest.raises(duckdb.Error, match="locked"):
                connection.execute("SET memory_limit = '1GB'")

        monkeypatch.setattr(query, "_make_views", made)
        query.run(lake, "SELECT 1")
        with query.connect(lake):
            pass
        assert seen == [[(False,)]] * 2


def late(*keys: str, time: str = "sold_at", **columns: Any) -> pa.Table:
    """One row of a table of late events."""
    window = pa.struct([("window_start", TIME), ("window_end", TIME), ("late_by_ms", pa.int64())])
    missed = [[{"window_start": NOON, "window_end": NOON + timedelta(hours=1), "late_by_ms": 1}]]
    own = {"_epoch": [1], "_batch_id": [3], "_event_id": ["e"], "_ingest_seq": [0], "partly_late": [False]}
    return pa.table(
        {
            **{key: ["k"] for key in keys},
            **columns,
            **own,
            time: pa.array([NOON], TIME),
            "late_by_ms": [1],
            "missed_windows": pa.array(missed, pa.list_(window)),
            "settled_version": pa.array([None], pa.int64()),
            "settled_at": pa.array([None], TIME),
        }
    )


class TestColumnsInDuckDb:
    def test_sql_shows_a_table_whatever_its_columns_are_called(self, lake: Lake) -> None:
        write(lake, "gold.a", {name: [number] for number, name in enumerate(FOREIGN)})
        columns, rows = query.run(lake, "SELECT * FROM gold.a")
        assert (columns, rows) == ([*FOREIGN], [tuple(range(len(FOREIGN)))])

    @pytest.mark.parametrize("name", NAMES)
    def test_late_events_of_such_a_key_and_time_are_shown(self, lake: Lake, name: str) -> None:
        time, key = name, "event" if name == "order" else "order"
        definition = a_pipeline(event_time=time, steps=(an_aggregate(by=(key,)),))
        write(lake, "gold.hourly_sales__late", late(key, time=time))
        console = Console(file=io.StringIO(), width=200, record=True)
        print_late(console, lake, definition, 5)
        shown = console.export_text()
        assert f"{time} (UTC)" in shown
        assert "2026-03-01 12:00:00" in shown
        assert shown.splitlines()[2].split()[0] == "e"

    def test_checks_look_at_such_columns(self, lake: Lake) -> None:
        times = pa.array([NOON + timedelta(hours=n) for n in range(3)], TIME)
        write(lake, "gold.hourly_sales", {**{name: ["a", "a", None] for name in NAMES}, "sold_at": times})
        write(lake, "silver.known", {name: ["b"] for name in NAMES})
        expectations, expected = [], []
        for name in NAMES:
            expectations += [NotNull(name), OneOf(name, ("b",)), Unique(name), Referential(name, "silver.known")]
            expected += [("not_null", 1), ("one_of", 2), ("unique", 1), ("referential", 2)]
        definition = a_pipeline(steps=(Where("true"),), watermark=None, expectations=tuple(expectations))
        found = check(lake, definition, no_spark, now=NOON)
        counted = [(each.expectation.partition("(")[0], each.unexpected_count) for each in found.results]
        assert sorted(counted) == sorted(expected)

    @pytest.mark.parametrize("name", NAMES)
    def test_checks_go_by_such_a_time(self, lake: Lake, name: str) -> None:
        times = pa.array([NOON + timedelta(hours=n // 2) for n in range(12)], TIME)
        write(lake, "gold.hourly_sales", {name: times})
        definition = a_pipeline(
            event_time=name,
            steps=(Where("true"),),
            watermark=None,
            expectations=(Fresh("1 day"), Volume("1 hour", min_share=0.5, intervals=3)),
        )
        found = check(lake, definition, no_spark, now=NOON + timedelta(hours=6))
        assert [each.success for each in found.results] == [True, True], found
        assert found.range.startswith("2026-03-01 12:00:00")

    @pytest.mark.parametrize("name", FOREIGN)
    def test_profiles_go_by_such_a_time_and_key(self, lake: Lake, name: str) -> None:
        times = pa.array([NOON + timedelta(minutes=15 * n) for n in range(40)], TIME)
        write(lake, "gold.a", {name: times, "key": [f"k{n}" for n in range(40)]})
        found = profile(lake, "gold.a", event_time=name, keys=[(name, "key")])
        assert (found.key, found.newest, found.gap) == ((name, "key"), times[-1].as_py(), timedelta(minutes=15))
        assert found.per == timedelta(hours=1)


class TestMerges:
    def table(self, lake: Lake, **more: Any) -> pa.Table:
        """All of these names: the first as the key, the others as measures."""
        ends = {"window_end": pa.array([NOON, NOON], TIME)}
        own = {"final_after": pa.array([NOON] * 2, TIME), "revision": [1, 1], "revised_at": pa.array([NOON] * 2, TIME)}
        return pa.table({**{name: [1, 2] for name in NAMES}, **ends, **own, **more})

    @pytest.mark.parametrize("kind", [Upsert, ReplaceWindows])
    def test_rows_of_such_columns_are_merged(self, lake: Lake, kind: type[Upsert]) -> None:
        write(lake, "gold.a", self.table(lake))
        changed = self.table(lake, **{'say"': [1, 5]})
        keys = ("window_end", "order", "event-time")
        SmallCommits(lake, "gold.a").commit(kind(changed, 2, 1, keys), CommitId("w", 1), "{}")  # type: ignore[arg-type]
        rows = sorted(open_table(lake, "gold.a").to_pyarrow_table().to_pylist(), key=lambda row: row["order"])
        assert [(row['say"'], row["revision"]) for row in rows] == [(1, 1), (5, 2)]

    @pytest.mark.parametrize("name", NAMES)
    def test_rows_are_revised_by_such_a_time(self, lake: Lake, name: str) -> None:
        own = {"revision": [1, 1], "revised_at": pa.array([NOON] * 2, TIME)}
        rows = pa.table(
            {name: pa.array([NOON, NOON + timedelta(hours=1)], TIME), "key": ["a", "b"], "m": [1, 2], **own}
        )
        write(lake, "gold.a", rows)
        us = int(NOON.timestamp()) * 1_000_000
        gone = rows.set_column(2, "m", [[9, 9]]).append_column(GONE, pa.array([False, True]))
        change = Revise(gone, 2, 1, ("key", name), (name, us, us + 3_600_000_000), bool)  # type: ignore[arg-type]
        SmallCommits(lake, "gold.a").commit(change, CommitId("w", 1), "{}")
        found = open_table(lake, "gold.a").to_pyarrow_table().to_pylist()
        assert [(row["key"], row["m"], row["revision"]) for row in found] == [("a", 9, 2)]

    @pytest.mark.parametrize("name", NAMES)
    def test_late_events_of_such_columns_are_found_and_marked(self, lake: Lake, name: str) -> None:
        write(lake, "gold.a__late", late(time=name))
        version, events = late_rows(lake, "gold.a__late", Lineage((1,)), times=[name], in_windows=False)
        assert (version, events["first_us"].to_pylist()) == (0, [int(NOON.timestamp()) * 1_000_000])
        mark_repaired(lake, "gold.a__late", events, 7)
        assert open_table(lake, "gold.a__late").to_pyarrow_table()["settled_version"].to_pylist() == [7]

    @pytest.mark.parametrize("name", NAMES)
    def test_files_keep_the_bounds_of_such_a_column_alone(self, lake: Lake, name: str) -> None:
        schema = StructType([StructField(name, TimestampType()), StructField("other", LongType())])
        create_table(lake, "gold.a", schema, statistics=(name,))
        write(lake, "gold.a", pa.table({name: pa.array([NOON], TIME), "other": [1]}))
        names = file_statistics(open_table(lake, "gold.a")).column_names
        assert (f"min.{name}" in names, "min.other" in names) == (True, False)

    def test_a_property_of_plain_names_has_no_quotes(self) -> None:
        assert [in_property(name) for name in ("sold_at", "größe", "event-time")] == [
            "sold_at",
            "`größe`",
            "`event-time`",
        ]


def is_spark_sql(sql: str) -> set[str]:
    """The columns of a condition that parses."""
    return {column.name for column in sqlglot.parse_one(sql, dialect="spark").find_all(exp.Column)}


class TestPlans:
    @pytest.mark.parametrize("name", NAMES)
    def test_where_rows_lie_is_sql_over_the_column(self, name: str) -> None:
        keyed = Deduplicate(keys=("order2",), within="1 hour")
        other = Table("bronze.other")
        join = Join(other, on=("key",), event_time=f"{name}_", within="1 hour")
        for step, columns in ((keyed, {name}), (join, {name, f"{name}_"})):
            operator = build(a_pipeline(event_time=name, steps=(step,))).operator
            assert operator is not None
            assert set(operator.recomputation.placed_by) == columns
            assert is_spark_sql(operator.recomputation.placed_in((0, 1))) == columns
            assert is_spark_sql(operator.recomputation.closed(5)) == columns
            with duckdb.connect() as connection:
                at = pa.array([NOON], TIME)
                connection.register("rows", pa.table(dict.fromkeys(sorted(columns), at)))
                placed = first_of(operator.recomputation.placed_by, in_duckdb)
                assert connection.execute(f"SELECT epoch_us({placed}) FROM rows").fetchall() == [
                    (int(NOON.timestamp()) * 1_000_000,)
                ]

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("window", [Tumbling("1 hour"), Hopping("1 hour", "10 minutes"), Session("5 minutes")])
    def test_windows_are_sql_over_the_column(self, name: str, window: Any) -> None:
        time = in_spark(name)
        for sql in (windowing_of(window).last_end_us(time), windowing_of(window).first_end_us(time)):
            assert is_spark_sql(sql) == {name}

    @pytest.mark.parametrize("name", SIGNS)
    def test_a_renamed_time_is_found_in_its_source(self, name: str) -> None:
        source = Table("bronze.sales", select={"at": in_spark(name), "key": "key"})
        reader = a_pipeline(
            source=source, event_time="at", steps=(an_aggregate(by=("key",), measures={"n": "count(*)"}),)
        )
        (side,) = build(reader).sides
        assert side.time_column(source) == name
        ingest = an_ingest(columns={name: "TIMESTAMP", "key": "STRING"}, event_time=name)
        # One time, and not one that is computed beside it.
        assert list(event_times("bronze.sales", [ingest], [reader])) == [in_spark(name)]

    @pytest.mark.parametrize("name", NAMES)
    def test_a_definition_may_give_such_names(self, name: str) -> None:
        definition = a_pipeline(
            event_time=name,
            watermark=Watermark(delay="1 minute", late=Late.SIDE_OUTPUT),
            steps=(an_aggregate(by=("order_id", "case-no"), measures={f"{name}2": "count(*)"}),),
        )
        assert spec.definition_from_json(definition.to_json()) == definition

    @pytest.mark.parametrize("name", ["order id", "a.b", "a`b", "a\tb", f"a{ESC}"])
    def test_what_a_table_cannot_hold_is_refused_with_a_way_out(self, name: str) -> None:
        with pytest.raises(
            DefinitionError, match=r"got .*: leave such a field out, keep it with contract=Contract\(new="
        ):
            an_ingest(columns={name: "TIMESTAMP"}, event_time=name)
        with pytest.raises(DefinitionError, match="choose another name"):
            Select({name: "1"})
        with pytest.raises(DefinitionError, match=r"Table\(select=\.\.\.\)"):
            a_pipeline(event_time=name)

    @pytest.mark.parametrize("name", ['say"', '"', "a|b"])
    def test_a_name_that_stands_in_quotes_in_a_header_can_be_a_column(self, name: str) -> None:
        source = Files("landing", format="csv", delimiter="|")
        definition = an_ingest(source=source, columns={name: "STRING", "at": "TIMESTAMP"}, event_time="at")
        assert spec.definition_from_json(definition.to_json()) == definition

    def test_the_way_out_that_is_named_works(self) -> None:
        source = Table("bronze.sales", select={"order_id": "_unknown_fields['order id']", "sold_at": "sold_at"})
        steps = (an_aggregate(by=("order_id",), measures={"n": "count(*)"}),)
        assert a_pipeline(source=source, steps=steps, sink=Sink("gold.a"))


VALUES = (
    *(
        '"; import os; os.system("x") #',
        "'",
        '"',
        "'\"",
        "a\\",
        "\\",
        "\n",
        "#",
        "{x}",
        ESC,
        "\u202e",
        "größe",
        "a\udcff",
    ),
    *('severity="warn"', '"""', "\\N{DEGREE SIGN}", ""),
)


class TestProposals:
    @pytest.mark.parametrize("value", VALUES)
    @pytest.mark.parametrize("of_ingest", [False, True])
    def test_a_value_is_the_same_value_in_what_is_proposed(self, value: str, of_ingest: bool) -> None:
        columns = (
            ColumnProfile("c", "VARCHAR", 0, 2, values=(value, "b")),
            ColumnProfile("d", "VARCHAR", 0, 1, values=(value,)),
            ColumnProfile("e", "VARCHAR", 1, 1, values=(value,)),
        )
        lines = list(row_proposals(Profile("gold.a", 0, 1000, columns), (), of_ingest=of_ingest))
        found = [each for line in lines for each in self.read(line)]
        assert [each.values for each in found if isinstance(each, OneOf)] == [(value, "b"), (value,), (value,)]
        assert [each.on_failure if of_ingest else each.severity for each in found if isinstance(each, NotNull)] == [
            *(["quarantine"] * 2 if of_ingest else ["fail"] * 2),
            "warn",
        ]
        assert all(visible(line) == line for line in lines)

    @pytest.mark.parametrize("name", [*FOREIGN, *VALUES[:-1]])
    def test_a_name_is_the_same_name_in_what_is_proposed(self, name: str) -> None:
        columns = (
            ColumnProfile(name, "BIGINT", 0, 2, 1, 2),
            ColumnProfile(name, "VARCHAR", 1, 1, values=("a",)),
        )
        found = Profile("gold.a", 0, 1000, columns, key=(name, "b"))
        lines = [*row_proposals(found, ()), *table_proposals(found, windowed=False)]
        read = [each for line in lines for each in self.read(line)]
        assert [each.column for each in read if isinstance(each, NotNull | Between | OneOf)] == [name] * 4
        assert [each.columns for each in read if isinstance(each, Unique)] == [(name, "b")]

    def read(self, line: str) -> list[Any]:
        """What a line is as Python: calls of the vocabulary with literals, and nothing else."""
        tree = ast.parse(f"[{line}\n]", mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                assert node.id in spec.__all__
            else:
                assert not isinstance(node, ast.Attribute | ast.Subscript | ast.BinOp)
        return list(eval(compile(tree, "proposed", "eval"), {name: getattr(spec, name) for name in spec.__all__}))


def test_columns_of_a_source_that_tidemark_gives_events_itself_are_found():
    own = ["_Source_Table", "_side", "_epoch", "__key", "_other_event_id"]
    bronze = ["_event_id", "_ingest_seq", "_ingest_time", "_source", "_heartbeat", "_unknown_fields", "_others", "k"]
    assert given_to_events([*bronze, *own]) == sorted(own)
