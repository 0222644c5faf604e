"""Plans that are carried out when what they were made for has changed: the commit itself refuses. Without a JVM."""

import shutil
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_jobs.commits.changes import GONE, Revise
from spark_jobs.commits.merging import CommitId
from spark_jobs.commits.small import SmallCommits
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints import swapping
from spark_jobs.lake.checkpoints.claims import refuse_ended, take_over
from spark_jobs.lake.checkpoints.epochs import Starts, begin_epoch, current_epoch, fix_starts
from spark_jobs.lake.checkpoints.reset import reset, tables_of
from spark_jobs.lake.checkpoints.swapping import Content, built_beside, remove_built, swap
from spark_jobs.lake.commit_records.basis import Basis, OutdatedPlanError, SupersededError
from spark_jobs.lake.commit_records.revisions import Revision, revisions
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.bootstrap.execute import begin
from spark_jobs.operations.bootstrap.plan import plan_bootstrap
from spark_jobs.operations.rebuild.plan import plan_rebuild
from spark_jobs.plan.tables import RESERVED, aside
from spark_jobs.recompute.revising import _found
from spark_jobs.recompute.target import BackfillRefusedError
from spark_jobs.spec import DefinitionError, Enrich, Sink
from tests.support import lakes
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_aggregate, write

TABLE = "gold.hourly_sales"
QUERY = "11111111-2222-3333-4444-555555555555"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FORCED = (NOON.replace(hour=0), NOON.replace(hour=23))
RESULT = pa.schema(
    [
        ("window_start", lakes.TIMESTAMP),
        ("window_end", lakes.TIMESTAMP),
        ("product_id", pa.string()),
        ("units", pa.int64()),
        ("revision", pa.int64()),
        ("revised_at", lakes.TIMESTAMP),
    ]
)


def a_row(units, hour=12, product="a"):
    window = {"window_start": NOON.replace(hour=hour), "window_end": NOON.replace(hour=hour + 1)}
    return {**window, "product_id": product, "units": units, "revision": 1, "revised_at": NOON}


def rows_of(*rows):
    return pa.Table.from_pylist(list(rows), schema=RESULT)


@pytest.fixture
def lake(tmp_path):
    """A stream has ended one batch, and closed the window of its one row."""
    lake, definition = a_lake(tmp_path / "lake"), a_pipeline()
    columns = {"product_id": pa.string(), "quantity": pa.int64(), "sold_at": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.sales", columns, "sold_at")
    bronze.append([{"product_id": "a", "quantity": 1, "sold_at": NOON}])
    bronze.append([{"product_id": "a", "quantity": 1, "sold_at": NOON.replace(hour=20)}])
    epoch = begin_epoch(lake, definition, 1)
    lake.store.put(f"{epoch.folder}/metadata", f'{{"id": "{QUERY}"}}'.encode())
    offset = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":2,"index":-1,"isStartingVersion":false}'
    entry = a_batch(2, sources={f"DeltaSource[{lake.table_uri('bronze.sales')}]": offset}, rows=1)
    entry = entry.model_copy(update={"watermark_ms": lakes.ms(NOON.replace(hour=19))})
    write(lake, TABLE, rows_of(a_row(1)), stamp=a_stamp(0, rows=1, ledger=entry))
    late = pa.schema(
        [
            *(("_epoch", pa.int32()), ("_batch_id", pa.int64()), ("_event_id", pa.string())),
            *(("_ingest_seq", pa.int64()), ("settled_version", pa.int64()), ("settled_at", lakes.TIMESTAMP)),
            ("missed_windows", pa.list_(pa.struct([("window_start", lakes.TIMESTAMP)]))),
        ]
    )
    write(lake, f"{TABLE}__late", late.empty_table())
    return lake


def units(lake, table=TABLE):
    return sorted(row["units"] for row in lakes.rows(lake, table))


def planned(lake):
    return plan_backfill(lake, a_pipeline(), *FORCED, force=True)


def revise(lake, target, plan, *rows, permitted=None):
    """What a backfill commits: these rows are there from now on."""
    opened = open_table(lake, TABLE)
    writer, number = target.basis.revision(lake, TABLE, opened)
    marked = rows_of(*rows).append_column(GONE, pa.array([False] * len(rows)))
    change = Revise(
        marked,  # type: ignore[arg-type]
        len(rows),
        1,
        ("window_start", "window_end", "product_id"),
        None,
        permitted or (lambda opened: target.basis.revision(lake, TABLE, opened)),
    )
    said = Revision(
        pipeline=target.name, epoch=plan.epoch, run=plan.run, role="result", ledger=LedgerEntry(started_ms=0)
    )
    SmallCommits(lake, TABLE).commit(change, CommitId(writer, number), said.encode())
    if _found(target, TABLE, said, opened.version()) is None:
        target.basis.revision(lake, TABLE, open_table(lake, TABLE))
    target.basis = target.basis.after(TABLE, number)


class TestABackfill:
    def test_that_was_planned_before_a_reset_is_refused_and_writes_nothing(self, lake):
        target, plan = planned(lake)
        reset(lake, a_pipeline(), empty_tables=True)
        before = open_table(lake, TABLE).version()
        with pytest.raises(
            OutdatedPlanError, match=r"`hourly_sales`: what was planned does not hold.*taken gold\.hourly"
        ):
            revise(lake, target, plan, a_row(9))
        with pytest.raises(
            OutdatedPlanError, match=r"epoch 1 of it is over \(epoch 2 now\).*Run the same command again"
        ):
            target.basis.refuse_outdated(lake)
        assert (open_table(lake, TABLE).version(), units(lake)) == (before, [])

    def test_loses_against_a_reset_in_the_middle_of_its_commit(self, lake):
        target, plan = planned(lake)

        def reset_once_all_is_checked(opened):
            target.basis.revision(lake, TABLE, opened)
            reset(lake, a_pipeline(), empty_tables=True)

        with pytest.raises(CommitFailedError, match="Concurrent transaction"):
            revise(lake, target, plan, a_row(9), permitted=reset_once_all_is_checked)
        assert units(lake) == []

    def test_counts_each_of_its_own_commits_and_sees_those_of_others(self, lake):
        target, plan = planned(lake)
        other, others = planned(lake)
        revise(lake, target, plan, a_row(2))
        revise(lake, target, plan, a_row(3))
        with pytest.raises(SupersededError, match=plan.run):
            revise(lake, other, others, a_row(4))
        assert units(lake) == [3]
        assert [each.run for _, each in revisions(lake, TABLE, "hourly_sales", 1)] == [plan.run, plan.run]

    def test_of_two_that_commit_at_the_same_moment_one_is_told(self, lake):
        target, plan = planned(lake)
        other, others = planned(lake)

        def another_is_faster(opened):
            revise(lake, other, others, a_row(2))

        with pytest.raises(SupersededError, match=others.run):
            revise(lake, target, plan, a_row(3), permitted=another_is_faster)
        assert units(lake) == [2]

    def test_goes_on_beside_the_stream(self, lake):
        target, plan = planned(lake)
        write(lake, TABLE, rows_of(a_row(7, hour=13)), stamp=a_stamp(1, rows=1))
        revise(lake, target, plan, a_row(2))
        assert units(lake) == [2, 7]

    @pytest.mark.parametrize("table", [TABLE, "bronze.sales"])
    def test_of_a_table_that_was_made_anew_is_refused(self, lake, table):
        target, _ = planned(lake)
        rows = open_table(lake, table).to_pyarrow_table()
        shutil.rmtree(lake.table_path(table))
        with pytest.raises(OutdatedPlanError, match=f"table {table} was removed\\."):
            target.basis.refuse_outdated(lake)
        write(lake, table, rows)
        with pytest.raises(OutdatedPlanError, match=f"table {table} was removed and made anew"):
            target.basis.refuse_outdated(lake)

    def test_that_another_revised_is_not_computed_in_the_next_epoch(self, lake, monkeypatch):
        (target, plan), tried = planned(lake), []

        def superseded(*_):
            tried.append(1)
            epoch = reset(lake, a_pipeline(), empty_tables=True).after.number
            entry = a_batch(1, sources=target.newest.sources)
            write(lake, TABLE, rows_of(), stamp=a_stamp(0, epoch=epoch, rows=0, ledger=entry))
            raise SupersededError("repair-1")

        monkeypatch.setattr(backfill, "_execute", superseded)
        with pytest.raises(OutdatedPlanError, match="epoch 1 of it is over"):
            backfill.execute(None, target, plan)
        assert tried == [1]

    def test_is_not_planned_while_a_reset_is_at_it(self, lake, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(
                "spark_jobs.lake.checkpoints.reset.begin_next_epoch",
                lambda *_, **__: (_ for _ in ()).throw(OSError("full")),
            )
            with pytest.raises(OSError, match="full"):
                reset(lake, a_pipeline(), empty_tables=True)
        with pytest.raises(BackfillRefusedError, match="epoch 1 has been ended by a reset or a rebuild"):
            planned(lake)
        with pytest.raises(
            CheckpointError,
            match=r"has ended epoch 1, and not begun the next.*repeat.*--keep-tables \(or --empty-tables",
        ):
            refuse_ended(lake, current_epoch(lake, "hourly_sales"), TABLE)


CHANGED = a_pipeline(steps=(an_aggregate(measures={"units": "sum(quantity) + 0"}),))


def built(lake, definition=CHANGED, rows=()):
    """A plan of a rebuild, and its rows aside, as Spark would have built them."""
    target, plan = plan_rebuild(lake, definition)
    write(lake, plan.aside, rows_of(*(rows or [a_row(5)])))
    return target, plan


def swap_in(lake, target, plan, definition=CHANGED):
    said = Revision(pipeline=target.name, epoch=plan.epoch, run=plan.run, role="result", end_us=plan.cut_us)
    contents = [Content(TABLE, aside(TABLE, plan.run), said)]
    return swap(lake, definition, target.before, plan.epoch, contents, cut_us=plan.cut_us, basis=plan.basis)


class TestARebuild:
    def test_that_waits_for_an_answer_swaps_in_its_own_rows(self, lake):
        target, plan = built(lake)
        _, dry = built(lake, a_pipeline(steps=(an_aggregate(measures={"units": "max(quantity)"}),)), [a_row(99)])
        assert plan.aside != dry.aside
        swap_in(lake, target, plan)
        assert units(lake) == [5]
        assert built_beside(lake, TABLE) == (dry.aside,), "another run's"

    def test_removes_what_its_own_runs_have_built_and_what_is_abandoned(self, lake):
        killed, waiting = built(lake, rows=[a_row(1)]), built(lake, rows=[a_row(2)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(swapping, "begin_next_epoch", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
            with pytest.raises(OSError, match="full"):
                swap_in(lake, *killed)
        epoch = swap_in(lake, *built(lake, rows=[a_row(5)])).number
        assert set(built_beside(lake, TABLE)) == {killed[1].aside, waiting[1].aside}
        remove_built(lake, CHANGED, epoch, keep=timedelta(days=7))
        assert built_beside(lake, TABLE) == (waiting[1].aside,), "it may still compute, or wait for an answer"
        remove_built(lake, CHANGED, epoch, keep=timedelta(0))
        assert built_beside(lake, TABLE) == ()
        assert units(lake) == [5]

    def test_that_was_planned_before_another_ended_is_refused(self, lake):
        waiting = built(lake, rows=[a_row(1)])
        epoch = swap_in(lake, *built(lake, rows=[a_row(5)]))
        # The stream of the new epoch goes on behind the cut.
        write(lake, TABLE, rows_of(a_row(6, hour=20)), stamp=a_stamp(0, epoch=epoch.number, rows=1))
        before = open_table(lake, TABLE).version()
        with pytest.raises(OutdatedPlanError, match=r"epoch 1 of it is over \(epoch 2 now\)"):
            swap_in(lake, *waiting)
        assert (units(lake), open_table(lake, TABLE).version()) == ([5, 6], before)
        assert current_epoch(lake, "hourly_sales") == epoch

    def test_that_comes_second_is_refused_at_the_first_table(self, lake, monkeypatch):
        first, second = built(lake, rows=[a_row(5)]), built(lake, rows=[a_row(6)])
        with monkeypatch.context() as patch:
            patch.setattr(swapping, "begin_next_epoch", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
            with pytest.raises(OSError, match="full"):
                swap_in(lake, *first)
        versions = [open_table(lake, name).version() for name in tables_of(CHANGED)]
        with pytest.raises(OutdatedPlanError, match=r"a reset or a rebuild has taken gold\.hourly_sales"):
            swap_in(lake, *second)
        assert versions == [open_table(lake, name).version() for name in tables_of(CHANGED)]
        # One that is planned now finishes what was left.
        assert swap_in(lake, *built(lake, rows=[a_row(7)])).number == 2
        assert units(lake) == [7]

    def test_is_not_disturbed_by_a_repair_of_the_rows_that_go(self, lake):
        waiting = built(lake, rows=[a_row(5)])
        revise(lake, *planned(lake), a_row(2))
        swap_in(lake, *waiting)
        assert units(lake) == [5]

    def test_a_reset_that_empties_in_its_last_step_leaves_an_epoch_over(self, lake, monkeypatch):
        begin, begun = swapping.begin_next_epoch, []

        def beside_a_reset(*arguments, **named):
            """A reset has found the old epoch, emptied all, and is about to begin the next one, too."""

            def once_the_rebuild_has(*mine, **of_mine):
                begun.append(begin(*arguments, **named))
                return begin(*mine, **of_mine)

            monkeypatch.setattr("spark_jobs.lake.checkpoints.reset.begin_next_epoch", once_the_rebuild_has)
            with pytest.raises(CheckpointError, match=r"has begun epoch 2 meanwhile.*Nothing is written in that epoch"):
                reset(lake, CHANGED, empty_tables=True)
            return begun[0]

        monkeypatch.setattr(swapping, "begin_next_epoch", beside_a_reset)
        epoch = swap_in(lake, *built(lake, rows=[a_row(5)]))
        monkeypatch.undo()
        assert (current_epoch(lake, "hourly_sales"), units(lake)) == (epoch, [])
        # What it begins with is not there: no stream writes behind its cut, and nothing is computed again.
        with pytest.raises(
            CheckpointError, match=r"has ended epoch 2.*tidemark rebuild hourly_sales, or tidemark reset"
        ):
            refuse_ended(lake, epoch, TABLE)
        with pytest.raises(BackfillRefusedError, match="epoch 2 has been ended by a reset or a rebuild"):
            plan_backfill(lake, CHANGED, *FORCED, force=True)
        after = reset(lake, CHANGED, empty_tables=True).after
        assert after.number == 3
        refuse_ended(lake, after, TABLE)

    def test_overwrites_nothing_once_another_has_taken_its_tables(self, lake, monkeypatch):
        target, plan = built(lake, rows=[a_row(5)])
        overwrite = swapping._overwrite

        def after_a_reset(*arguments):
            reset(lake, CHANGED, empty_tables=True)
            overwrite(*arguments)

        monkeypatch.setattr(swapping, "_overwrite", after_a_reset)
        with pytest.raises(OutdatedPlanError, match="another reset or rebuild has taken"):
            swap_in(lake, target, plan)
        assert units(lake) == []
        assert current_epoch(lake, "hourly_sales").cut_us is None


@pytest.mark.parametrize("suffix", RESERVED)
def test_no_definition_writes_what_is_kept_beside_a_table(suffix):
    for table in (f"gold.hr{suffix}", aside("gold.hr", "rebuild-0123456789ab")):
        with pytest.raises(DefinitionError, match="is a side table"):
            Sink(table)
        with pytest.raises(DefinitionError, match="is a side table"):
            Enrich(table, on=("k",), columns={"a": "a"})


def test_of_many_that_end_an_epoch_at_once_one_has_all_of_its_tables(lake):
    epoch, names = current_epoch(lake, "hourly_sales"), tables_of(a_pipeline())
    basis = Basis.of(lake, "hourly_sales", 1, names)
    claims, refused, together = [], [], threading.Barrier(4)

    def end():
        together.wait()
        try:
            claims.append(take_over(lake, epoch, names, basis=basis))
        except OutdatedPlanError as error:
            refused.append(error)

    threads = [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(claims), len(refused)) == (1, 3)
    claims[0].refuse_lost()
    for table in names:
        assert open_table(lake, table).transaction_version(f"hourly_sales/{table}/{QUERY}/1") == 2**63 - 1


def test_a_reset_that_another_one_overtook_removes_nothing(lake):
    before, names = current_epoch(lake, "hourly_sales"), tables_of(a_pipeline())
    reset(lake, a_pipeline(), empty_tables=True)
    write_deltalake(lake.table_uri(TABLE), rows_of(a_row(8)), mode="append")
    with pytest.raises(OutdatedPlanError, match="another command has begun epoch 2 meanwhile"):
        take_over(lake, before, names)
    assert units(lake) == [8]


class TestABootstrap:
    def test_that_a_stream_has_overtaken_begins_no_epoch(self, lake):
        reset(lake, a_pipeline(), empty_tables=True)
        plan = plan_bootstrap(lake, a_pipeline())
        fix_starts(lake, current_epoch(lake, "hourly_sales"), Starts(versions={"bronze.sales": 0}))
        with pytest.raises(CheckpointError, match="its stream has begun in epoch 2 since this was planned"):
            begin(lake, a_pipeline(), plan)
        assert current_epoch(lake, "hourly_sales").number == 2

    def test_leaves_no_stream_a_way_into_the_epoch_before(self, lake):
        reset(lake, a_pipeline(), empty_tables=True)
        before, plan = current_epoch(lake, "hourly_sales"), plan_bootstrap(lake, a_pipeline())
        assert begin(lake, a_pipeline(), plan).number == 3
        with pytest.raises(CheckpointError, match="a bootstrap has ended epoch 2 before it began"):
            fix_starts(lake, before, Starts(versions={"bronze.sales": 0}))
        assert begin(lake, a_pipeline(), plan).number == 3, "again, as after a crash"
