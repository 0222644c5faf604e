"""Commits of other programs on results: counted from their files, and put right by a backfill of their range."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_jobs.lake.accounting import audit, foreign
from spark_jobs.lake.accounting.foreign import foreign_changes
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.commit_records.revisions import Revision
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.execute import _remedy
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.plan import logical
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.target import BackfillRefusedError, Target
from spark_jobs.spec import Deduplicate, Join, Sink, Table, TopN, Watermark
from tests.support import lakes
from tests.support.builders import a_batch, a_lake, a_pipeline, a_running_total, a_stamp, an_aggregate, write

TABLE = "gold.hourly_sales"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FORCED = (NOON.replace(hour=0), NOON.replace(hour=18))
RESULT = pa.schema(
    [
        *(("window_start", lakes.TIMESTAMP), ("window_end", lakes.TIMESTAMP), ("product_id", pa.string())),
        *(("units", pa.int64()), ("tags", pa.map_(pa.string(), pa.string())), ("__events", pa.int64())),
        *(("final_after", lakes.TIMESTAMP), ("revision", pa.int64()), ("revised_at", lakes.TIMESTAMP)),
    ]
)
LATE = pa.schema(
    [
        *(("_epoch", pa.int32()), ("_batch_id", pa.int64()), ("_event_id", pa.string()), ("_ingest_seq", pa.int64())),
        *(("_ingest_time", lakes.TIMESTAMP), ("settled_version", pa.int64()), ("settled_at", lakes.TIMESTAMP)),
        ("missed_windows", pa.list_(pa.struct([("window_start", lakes.TIMESTAMP), ("window_end", lakes.TIMESTAMP)]))),
    ]
)


def a_row(hour, product="a", events=3, units=5):
    window = {"window_start": NOON.replace(hour=hour), "window_end": NOON.replace(hour=hour + 1)}
    rest = {"tags": [("x", product)], "__events": events, "revision": 1, "revised_at": NOON}
    return {**window, "product_id": product, "units": units, **rest}


def rows_of(*rows):
    return pa.Table.from_pylist(list(rows), schema=RESULT)


def stream(lake, definition, rows):
    """One batch of a stream that has read all of bronze, and closed every window until 19 o'clock."""
    begin_epoch(lake, definition, 1)
    sources = {}
    for table in definition.tables:
        offset = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":2,"index":-1,"isStartingVersion":false}'
        sources[f"DeltaSource[{lake.table_uri(table.name)}]"] = offset
    pairs = sum(row["__events"] for row in rows)
    entry = a_batch(pairs, sources=sources, rows=len(rows))
    entry = entry.model_copy(update={"watermark_ms": lakes.ms(NOON.replace(hour=19))})
    groups = logical.build(definition).table("groups")
    if groups is not None:
        write(lake, groups.name, rows_of(*rows), stamp=a_stamp(0, rows=len(rows), role="groups"))
    write(lake, TABLE, rows_of(*rows), stamp=a_stamp(0, rows=len(rows), ledger=entry))
    write(lake, f"{TABLE}__late", LATE.empty_table())


@pytest.fixture
def lake(tmp_path):
    """A stream has written a row for each of four hours."""
    lake = a_lake(tmp_path / "lake")
    bronze_of(lake, "bronze.sales")
    stream(lake, a_pipeline(), [a_row(hour) for hour in (11, 12, 13, 14)])
    return lake


def bronze_of(lake, table, *, time="sold_at", first=NOON):
    columns = {"product_id": pa.string(), "quantity": pa.int64(), time: lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, table, columns, time)
    for at in (first, NOON.replace(hour=20)):
        bronze.append([{"product_id": "a", "quantity": 1, time: at}])
    return bronze


def said(lake, definition=None, table=TABLE):
    definition = definition or a_pipeline()
    found = foreign_changes(lake, table, logical.build(definition).operator, definition.name, 1)
    return [change.describe() for change in found]


def put_right(lake, begin, end, *, inserted=0, deleted=0, grown=0, definition=None):
    """What a forced backfill of a range commits that makes so many rows anew."""
    target = Target(lake, definition or a_pipeline(), force=True)
    booked = target.put_right(TABLE, *(lakes.ms(each) * 1000 for each in (begin, end)))
    terms = {"rows": inserted - deleted, "pairs_revised": grown}
    terms = {name: terms.get(name, 0) + booked.terms.get(name, 0) for name in (*terms, *booked.terms)}
    revision = Revision(
        pipeline=target.name,
        epoch=1,
        run="backfill-1",
        role="result",
        begin_us=lakes.ms(begin) * 1000,
        end_us=lakes.ms(end) * 1000,
        replaced=booked.versions,
        ledger=LedgerEntry(kind="backfill", started_ms=0, terms=terms),
    )
    rows = [a_row(12)] if inserted else []
    write(lake, TABLE, rows_of(*rows), stamp=revision.encode())
    return booked


def sizes_of(lake, *, version):
    """Of the files that a commit takes away, and of those that it adds."""
    log = Path(lake.table_path(TABLE)) / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return [sum(action[kind]["size"] for action in actions if kind in action) for kind in ("remove", "add")]


def wrong(lake, definition=None):
    return [
        text
        for holds, text in audit.checks(lake, definition or a_pipeline(), 1, lakes.ledger(lake, a_pipeline()))
        if not holds
    ]


class TestWhatIsCounted:
    def test_a_row_that_was_deleted(self, lake):
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        assert said(lake) == [f"{TABLE} (version 1, DELETE): took 1 row of 3 events"]

    def test_rows_that_were_changed_in_a_file_that_has_others(self, lake):
        open_table(lake, TABLE).update({"units": "units + 1"}, predicate="window_start < '2026-01-01T13:00:00Z'")
        assert said(lake) == [f"{TABLE} (version 1, UPDATE): took 2 rows of 6 events and added 2 rows of 6 events"]

    def test_rows_that_were_added_and_are_there_twice(self, lake):
        write_deltalake(lake.table_uri(TABLE), rows_of(a_row(12), a_row(16, events=7)), mode="append")
        (told,) = said(lake)
        assert told == f"{TABLE} (version 1, WRITE): added 2 rows of 10 events; there are rows twice now"

    def test_a_program_need_not_say_how_many_rows_it_has_added(self, lake):
        write_deltalake(lake.table_uri(TABLE), rows_of(a_row(16)), mode="append")
        log = Path(lake.table_uri(TABLE).removeprefix("file://")) / "_delta_log" / f"{1:020}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            action.get("commitInfo", {})["operationMetrics"] = {"numFiles": "1"}
        log.write_text("\n".join(json.dumps(action) for action in actions))
        assert said(lake) == [f"{TABLE} (version 1, WRITE): added 1 row of 3 events"]

    def test_a_table_that_was_written_anew_with_the_same_rows_is_as_it_was(self, lake):
        same = open_table(lake, TABLE).to_pyarrow_table()
        write_deltalake(lake.table_uri(TABLE), same, mode="overwrite")
        assert said(lake) == []
        assert Target(lake, a_pipeline()).conflicts == ()

    def test_a_file_that_is_gone(self, lake):
        (file,) = open_table(lake, TABLE).file_uris()
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        Path(file.removeprefix("file://")).unlink()
        assert said(lake) == [
            f"{TABLE} (version 1, DELETE): what it changed cannot be counted, because data files are gone"
        ]

    @pytest.mark.parametrize("mode", ["append", "update"])
    def test_more_than_can_be_read_is_said_and_not_read(self, tmp_path, monkeypatch, mode):
        lake, definition = a_lake(tmp_path / mode), a_pipeline(sink=Sink(TABLE, mode=mode))
        bronze_of(lake, "bronze.sales")
        stream(lake, definition, [a_row(hour) for hour in (11, 12, 13, 14)])
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        taken, added = sizes_of(lake, version=1)
        # Of a table that is updated all rows are compared, else the files of the commit.
        monkeypatch.setattr(foreign, "_MOST_BYTES", taken + added + (added if mode == "update" else 0) - 1)
        monkeypatch.setattr(foreign, "_batches_of", lambda *_: pytest.fail("read"))
        assert said(lake, definition) == [
            f"{TABLE} (version 1, DELETE): what it changed cannot be counted, because that takes 0.0 GiB of data "
            "files, and no more than 0.0 are read"
        ]
        assert "reset hourly_sales" in _remedy(Target(lake, definition, force=True), Range(0, 1), only_twice=False)

    def test_a_commit_of_many_rows_holds_few_of_them_at_once(self, lake, monkeypatch):
        at_once, insert = [], foreign._Counting._insert

        def watched(self, name, selected, batches, where="true"):
            insert(self, name, selected, (at_once.append(each.num_rows) or each for each in batches), where)

        monkeypatch.setattr(foreign._Counting, "_insert", watched)
        row = a_row(16, events=1)
        many = rows_of(*(row | {"product_id": str(number)} for number in range(70_000)))
        write_deltalake(lake.table_uri(TABLE), many, mode="append")
        assert said(lake) == [f"{TABLE} (version 1, WRITE): added 70,000 rows of 70,000 events"]
        assert max(at_once) <= 65_536 < sum(at_once)

    def test_what_a_compaction_does_is_no_change(self, lake):
        write(lake, TABLE, rows_of(a_row(15)), stamp=a_stamp(1, rows=1, ledger=a_batch(3, rows=1)))
        open_table(lake, TABLE).optimize.compact()
        assert said(lake) == []

    def test_a_group_that_the_stream_has_written_again_since(self, tmp_path):
        lake = a_lake(tmp_path / "updated")
        bronze_of(lake, "bronze.sales")
        definition = a_pipeline(sink=Sink(TABLE, mode="update"))
        stream(lake, definition, [a_row(11), a_row(12)])
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        assert len(said(lake, definition)) == 1
        write(lake, TABLE, rows_of(a_row(12, events=4)), stamp=a_stamp(1, rows=1, ledger=a_batch(1, rows=1)))
        assert said(lake, definition) == []

    def test_a_total_of_everything_that_no_key_tells(self, tmp_path):
        lake = a_lake(tmp_path / "total")
        bronze_of(lake, "bronze.sales")
        definition = a_running_total(sink=Sink(TABLE, mode="update"), steps=(an_aggregate(window=None, by=()),))
        stream(lake, definition, [a_row(11)])
        open_table(lake, TABLE).update({"units": "0"})
        assert said(lake, definition) == [
            f"{TABLE} (version 1, UPDATE): took 1 row of 3 events and added 1 row of 3 events"
        ]

    def test_groups_of_a_live_ranking(self, tmp_path):
        lake = a_lake(tmp_path / "ranking")
        bronze_of(lake, "bronze.sales")
        definition = a_pipeline(
            sink=Sink(TABLE, mode="update"), steps=(an_aggregate(), TopN(2, order_by="units DESC, product_id"))
        )
        stream(lake, definition, [a_row(11), a_row(12)])
        open_table(lake, f"{TABLE}__groups").delete("window_start = '2026-01-01T12:00:00Z'")
        with pytest.raises(BackfillRefusedError, match=r"another program has changed gold\.hourly_sales__groups"):
            Target(lake, definition)
        assert Target(lake, definition, force=True).conflicts == (
            f"{TABLE}__groups (version 1, DELETE): took 1 row of 3 events",
        )


class TestPuttingRight:
    def test_the_remedy_puts_right_what_was_deleted(self, lake):
        assert wrong(lake) == []
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        change = (
            f"changed by another program, and not put right since: {TABLE} (version 1, DELETE): took 1 row of 3 events"
        )
        assert wrong(lake) == [change, f"rows: 4 written, 3 in {TABLE}"]
        for plan in (lambda: plan_repair(lake, a_pipeline()), lambda: plan_backfill(lake, a_pipeline(), *FORCED)):
            with pytest.raises(BackfillRefusedError, match=r"\(version 1, DELETE\).*--force"):
                plan()
        put_right(lake, *FORCED, inserted=1, grown=3)
        assert wrong(lake) == []
        # A repair needs no --force any more.
        _, plan = plan_repair(lake, a_pipeline())
        assert plan.nothing_to_do == "no late event is left to be counted"

    def test_it_takes_the_whole_range_of_the_change(self, lake):
        open_table(lake, TABLE).update({"units": "units + 1"})
        half = put_right(lake, NOON.replace(hour=0), NOON.replace(hour=13))
        assert half.versions == {1: False}
        assert said(lake) == [f"{TABLE} (version 1, UPDATE): took 2 rows of 6 events and added 2 rows of 6 events"]
        rest = put_right(lake, NOON.replace(hour=13), NOON.replace(hour=18))
        assert rest.versions == {1: True}
        assert said(lake) == []
        assert wrong(lake) == []

    def test_what_lies_elsewhere_is_not_booked(self, lake):
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        assert put_right(lake, NOON.replace(hour=13), NOON.replace(hour=18)).versions == {}
        assert len(said(lake)) == 1

    def test_what_is_there_twice_is_not_put_right_by_a_backfill(self, lake):
        write_deltalake(lake.table_uri(TABLE), rows_of(a_row(12)), mode="append")
        assert put_right(lake, *FORCED).versions == {}
        assert f"rows: 4 written, 5 in {TABLE}" in wrong(lake)

    def test_the_remedy_names_a_range_that_has_all_of_it(self, lake):
        open_table(lake, TABLE).delete("window_start <= '2026-01-01T12:00:00Z'")
        target = Target(lake, a_pipeline(), force=True)
        noon_us = lakes.ms(NOON) * 1000
        told = _remedy(target, Range(noon_us, noon_us + 3_600_000_000), only_twice=False)
        assert told == "tidemark backfill hourly_sales --from 2026-01-01T11:00:00 --to 2026-01-01T13:00:00 --force"

    def test_two_programs_after_each_other(self, lake):
        open_table(lake, TABLE).delete("window_start = '2026-01-01T12:00:00Z'")
        write_deltalake(lake.table_uri(TABLE), rows_of(a_row(12)), mode="append")
        assert len(said(lake)) == 2
        # Nothing differs, and it is put right all the same.
        assert put_right(lake, *FORCED).versions == {1: True, 2: True}
        assert wrong(lake) == []


class TestWhereItBegins:
    def test_a_recount_of_all_begins_before_the_first_event(self, tmp_path):
        lake = a_lake(tmp_path / "old")
        old = datetime(1931, 5, 1, 12, 30, tzinfo=UTC)
        bronze_of(lake, "bronze.sales", first=old)
        stream(lake, a_pipeline(), [a_row(12)])
        _, plan = plan_backfill(lake, a_pipeline(), None, NOON.replace(hour=18), force=True)
        # The window of the event is among what is recounted.
        assert plan.slices[0].begin_us <= lakes.ms(old.replace(minute=0)) * 1000
        assert plan.slices[0].begin_us >= lakes.ms(old - timedelta(hours=1)) * 1000

    def test_or_at_a_row_that_no_event_gives(self, lake):
        older = a_row(12) | {
            "window_start": datetime(1901, 1, 1, tzinfo=UTC),
            "window_end": datetime(1901, 1, 2, tzinfo=UTC),
        }
        write_deltalake(lake.table_uri(TABLE), rows_of(older), mode="append")
        _, plan = plan_backfill(lake, a_pipeline(), None, NOON.replace(hour=18), force=True)
        assert plan.slices[0].begin_us == lakes.ms(older["window_start"]) * 1000


YEAR_US = 365 * 24 * 3_600_000_000
BEYOND = {"year 31,970": 30_000 * YEAR_US, "before Christ": -3_000 * YEAR_US}


@pytest.mark.parametrize("begin_us", BEYOND.values(), ids=list(BEYOND))
def test_rows_beyond_the_calendar_are_named_without_failing(lake, begin_us):
    at = pa.array([begin_us], pa.int64()).cast(lakes.TIMESTAMP)
    odd = rows_of(a_row(12))
    for name in ("window_start", "window_end"):
        odd = odd.set_column(odd.schema.get_field_index(name), name, at)
    write_deltalake(lake.table_uri(TABLE), odd, mode="append")
    assert said(lake) == [f"{TABLE} (version 1, WRITE): added 1 row of 3 events"]
    assert any(f"{TABLE} (version 1, WRITE): added 1 row of 3 events" in each for each in wrong(lake))
    target, plan = plan_backfill(lake, a_pipeline(), None, NOON.replace(hour=18), force=True)
    assert target.conflicts
    part = Range(plan.slices[0].begin_us, plan.slices[-1].end_us)
    assert str(part).endswith("2026-01-01 18:00:00")
    # No range that a person can write has it.
    assert _remedy(target, part, only_twice=False) == (
        "tidemark stop hourly_sales; tidemark reset hourly_sales --empty-tables; tidemark deploy hourly_sales"
    )


def test_the_remedy_of_an_early_year_is_one_that_can_be_read(lake):
    target = Target(lake, a_pipeline(), force=True)
    first, last = (datetime(year, 1, 1, tzinfo=UTC) for year in (20, 9999))
    told = _remedy(target, Range(lakes.ms(first) * 1000, lakes.ms(last) * 1000), only_twice=False)
    assert told == "tidemark backfill hourly_sales --from 0020-01-01T00:00:00 --to 9999-01-01T00:00:00 --force"
    told = _remedy(
        target, Range(lakes.ms(last) * 1000, lakes.ms(datetime.max.replace(tzinfo=UTC)) * 1000 + 999), only_twice=False
    )
    assert "reset hourly_sales" in told


@pytest.mark.parametrize("step", ["join", "deduplicate"])
def test_a_batch_reads_no_event_that_the_stream_has_not_read(tmp_path, step):
    lake = a_lake(tmp_path / "lake")
    tables = {"bronze.sales": "sold_at", "bronze.paid": "paid_at"}
    bronzes = [bronze_of(lake, table, time=time) for table, time in tables.items()]
    steps = {
        "join": Join(Table("bronze.paid"), on=("product_id",), event_time="paid_at", within="1 hour"),
        "deduplicate": Deduplicate("product_id", within="1 hour"),
    }
    definition = a_pipeline(steps=(steps[step],), watermark=Watermark(delay="2 minutes"))
    stream(lake, definition, [a_row(12)])
    for bronze, time in zip(bronzes, tables.values(), strict=True):
        bronze.append([{"product_id": "late", "quantity": 1, time: NOON}])
    reads = Target(lake, definition).reads("corrected", None)
    # Version 2 is where the stream stands, and has not read anything of it.
    assert {read.version for read in reads} == {1}
    windows = a_pipeline(name="windows", sink=Sink("gold.windows"))
    assert not logical.build(windows).operator.recomputation.reads_as_stream
