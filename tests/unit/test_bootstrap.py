"""The cut of a bootstrap, what lies on which side of it, and the plans as people read them; without a JVM."""

import re
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import begin_epoch, history_cut, note_bootstrapped
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.bootstrap.plan import BootstrapRefusedError, plan_bootstrap
from spark_jobs.operations.bootstrap.text import bootstrap_text
from spark_jobs.operations.rebuild.plan import Comparison, Difference, plan_rebuild
from spark_jobs.operations.rebuild.text import comparison_text, rebuild_text
from spark_jobs.plan.columns import TIME
from spark_jobs.plan.lateness import WindowEnd
from spark_jobs.plan.windowing import windowing_of
from spark_jobs.recompute.target import BackfillRefusedError
from spark_jobs.spec import (
    Calendar,
    Deduplicate,
    Hopping,
    Late,
    Running,
    Session,
    Sink,
    Table,
    Tumbling,
    Union,
    Watermark,
    Where,
)
from tests.support import lakes
from tests.support.builders import a_lake, a_pipeline, a_running_total, a_stamp, an_aggregate, an_ingest, write


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


def bronze(lake, *times, table="bronze.sales"):
    columns = {"product_id": pa.string(), "quantity": pa.int64(), "sold_at": lakes.TIMESTAMP}
    filled = lakes.Bronze(lake, table, columns, "sold_at")
    for time in times:
        filled.append([{"product_id": "a", "quantity": 1, "sold_at": time}])
    return filled


def at(hour, minute=0, second=0):
    return datetime(2026, 1, 1, hour, minute, second, tzinfo=UTC)


def cut(plan):
    return datetime.fromtimestamp(plan.cut_us / 1e6, UTC)


def a_tumbling(size, offset):
    return Tumbling(f"{size} minutes", offset=f"{offset % size} minutes")


def a_hopping(every, more, offset):
    return Hopping(f"{every + more} minutes", f"{every} minutes", offset=f"{offset % every} minutes")


GRIDS = st.builds(a_tumbling, st.integers(1, 40), st.integers(0, 39)) | st.builds(
    a_hopping, st.integers(1, 15), st.integers(0, 40), st.integers(0, 14)
)
SECONDS = st.integers(0, 12_000)


def ends_of(window, time_us):
    """The ends of the windows that hold an instant, by their definition."""
    size, every, offset = (int(each.total_seconds()) * 10**6 for each in (window.size, window.every, window.offset))
    newest = (time_us - offset) // every * every + offset
    starts = range(newest, newest - size, -every)
    return [start + size for start in starts if start <= time_us < start + size][::-1]


@given(window=GRIDS, instant_s=st.integers(-(10**5), 10**5))
def test_a_cut_is_the_newest_end_of_a_window(window, instant_s):
    found = windowing_of(window).last_end_upto(instant_s * 10**6)
    assert found <= instant_s * 10**6 < found + window.every.total_seconds() * 10**6
    assert found in ends_of(window, found - 1)


@given(window=GRIDS, time_s=SECONDS, cut_s=SECONDS, watermark_s=SECONDS)
def test_a_stream_from_a_cut_counts_the_pairs_beyond_it_and_no_others(window, time_s, cut_s, watermark_s):
    windows, ms = windowing_of(window), watermark_s * 1000
    cut_us = windows.last_end_upto(cut_s * 10**6)
    verdict = WindowEnd(windows).beyond(cut_us)
    beyond = [end for end in ends_of(window, time_s * 10**6) if end > cut_us]
    late = [end for end in beyond if end <= ms * 1000]
    us = f"{ms * 1000}L"
    asked = (verdict.history, verdict.pairs(), verdict.any_late(us), verdict.all_late(us), verdict.late_pairs(us))
    history, pairs, any_late, all_late, late_pairs = (by_duckdb(sql, time_s) for sql in asked)
    assert history == (not beyond)
    if beyond:
        assert (pairs, any_late, all_late) == (len(beyond), bool(late), late == beyond)
        assert not late or late_pairs == len(late)


def by_duckdb(sql, time_s):
    """A text of Spark's, by DuckDB."""
    text = sql.replace(" div ", " // ").replace(f"unix_micros({TIME})", f"{time_s * 10**6}::BIGINT")
    return ORACLE.execute("SELECT " + re.sub(r"(\d)L\b", r"\1::BIGINT", text)).fetchone()[0]


ORACLE = duckdb.connect()
ORACLE.execute("CREATE MACRO pmod(a, b) AS ((a % b) + b) % b")


class TestTheCut:
    def test_is_the_last_end_of_a_window_that_the_watermark_has_passed(self, lake):
        filled = bronze(lake, at(9, 30), at(12, 1, 59), at(8))
        assert cut(plan_bootstrap(lake, a_pipeline())) == at(11)
        filled.append([{"product_id": "a", "quantity": 1, "sold_at": at(12, 2)}])
        assert cut(plan_bootstrap(lake, a_pipeline())) == at(12)

    def test_is_the_last_midnight_of_the_zone_that_the_watermark_has_passed(self, lake):
        filled = bronze(lake, datetime(2026, 3, 29, 22, 1, 59, tzinfo=UTC))
        days = a_pipeline(steps=(an_aggregate(window=Calendar("day", tz="Europe/Berlin")),))
        assert cut(plan_bootstrap(lake, days)) == datetime(2026, 3, 28, 23, tzinfo=UTC)
        filled.append([{"product_id": "a", "quantity": 1, "sold_at": datetime(2026, 3, 29, 22, 2, tzinfo=UTC)}])
        assert cut(plan_bootstrap(lake, days)) == datetime(2026, 3, 29, 22, tzinfo=UTC)

    def test_waits_for_grace(self, lake):
        bronze(lake, at(12, 30))
        grace = Watermark(delay="2 minutes", grace="29 minutes", late=Late.UPDATE)
        patient = a_pipeline(watermark=grace, sink=Sink("gold.hourly_sales", mode="update"))
        assert cut(plan_bootstrap(lake, patient)) == at(11)

    def test_follows_heartbeats_which_move_the_watermark(self, lake):
        filled = bronze(lake, at(9))
        filled.heartbeat(lakes.ms(at(15, 2)))
        assert cut(plan_bootstrap(lake, a_pipeline())) == at(15)

    def test_is_that_of_the_table_which_is_behind(self, lake):
        bronze(lake, at(15))
        bronze(lake, at(11, 2), table="bronze.more")
        both = a_pipeline(source=Union(Table("bronze.sales", select=PLAIN), Table("bronze.more", select=PLAIN)))
        assert cut(plan_bootstrap(lake, both)) == at(11)

    def test_stays_what_it_was_when_a_bootstrap_goes_on(self, lake):
        filled = bronze(lake, at(12, 30))
        plan = plan_bootstrap(lake, a_pipeline())
        epoch = begin_epoch(lake, a_pipeline(), plan.epoch, cut_us=plan.cut_us)
        assert begin_epoch(lake, a_pipeline(), plan.epoch, cut_us=0) == epoch, "whoever is first says where it lies"
        filled.append([{"product_id": "a", "quantity": 1, "sold_at": at(20)}])
        again = plan_bootstrap(lake, a_pipeline())
        assert (again.begun, again.epoch, again.cut_us) == (True, 1, plan.cut_us)
        assert history_cut(lake, epoch) == plan.cut_us
        note_bootstrapped(lake, epoch, 3)
        assert history_cut(lake, epoch) is None


PLAIN = {name: name for name in ("product_id", "quantity", "sold_at")}
COMPUTED = {"sold_at": "sold_at + INTERVAL 1 HOUR", "product_id": "product_id", "quantity": "quantity"}
REFUSED = {
    "a session may reach across every cut": a_pipeline(steps=(an_aggregate(window=Session("1 hour")),)),
    "its state cannot be split at a point in time": a_pipeline(steps=(Deduplicate("product_id", within="1 hour"),)),
    "it remembers nothing": a_pipeline(steps=(Where("quantity > 0"),), watermark=None),
    "a running total has no part": a_running_total(),
    "is an ingest": an_ingest(),
    "is computed from columns": a_pipeline(source=Table("bronze.sales", select=COMPUTED)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_cut_is_refused_with_a_way_out(lake, why):
    bronze(lake, at(12))
    with pytest.raises(BootstrapRefusedError, match=why):
        plan_bootstrap(lake, REFUSED[why])


def test_a_source_without_events_has_no_history(lake):
    bronze(lake, None)
    with pytest.raises(BootstrapRefusedError, match="has no event with a `sold_at`"):
        plan_bootstrap(lake, a_pipeline())


def lines(text):
    """Of a plan; each run has a name of its own, and each version of what writes files gives them another size."""
    return re.sub(r"[\d.]+ kB", "n kB", re.sub(r"__rebuilt_[0-9a-f]{12}", "__rebuilt_RUN", text)).splitlines()


def test_a_plan_says_what_is_read_where_and_up_to_where(lake):
    bronze(lake, at(9, 30), at(12, 30), at(13, 30))
    assert lines(bootstrap_text(plan_bootstrap(lake, a_pipeline()))) == [
        "bootstrap of hourly_sales: epoch 1 begins",
        "cut      2026-01-01 13:00:00 UTC; the newest event is of 2026-01-01 13:30:00",
        "stream   windows that end after the cut, for gold.hourly_sales",
        "reads    bronze.sales, version 2: at most 3 rows, n kB",
        "batch    windows that end at or before it, over the events that the stream has read by then",
        "reads    bronze.sales, version 2: at most 2 rows, n kB",
    ]


def a_rebuild(lake, changed):
    """A plan of a rebuild where a result was written with another definition before."""
    begin_epoch(lake, a_pipeline(), 1)
    write(lake, "gold.hourly_sales", {"units": [1]}, stamp=a_stamp())
    return plan_rebuild(lake, changed)[1]


def test_a_rebuild_says_what_it_builds_where(lake):
    bronze(lake, at(9, 30), at(12, 30))
    assert lines(rebuild_text(a_rebuild(lake, a_pipeline(steps=(an_aggregate(by=()),))))) == [
        "rebuild of hourly_sales: steps changed; epoch 2 takes the place of epoch 1",
        "cut      2026-01-01 12:00:00 UTC; the newest event is of 2026-01-01 12:30:00",
        "builds   windows that end at or before it, in gold.hourly_sales__rebuilt_RUN",
        "reads    bronze.sales, version 1: at most 1 row, n kB",
        "then     compares them with gold.hourly_sales, swaps them in one commit if told to, streams on from the cut",
    ]


def test_a_comparison_says_what_becomes_another(lake):
    bronze(lake, at(9, 30), at(12, 30))
    plan = a_rebuild(lake, a_pipeline(steps=(an_aggregate(by=()),)))
    examples = (Difference(row="window_start=2026-01-01 09:00:00", what="units is 1, becomes 2"),)
    counts = {"same": 1_000, "changed": 2, "new": 3, "gone": 0, "beyond": 4}
    found = Comparison(**counts, added=("most",), retyped=("units: int, then bigint",), examples=examples)
    assert lines(comparison_text(plan, found)) == [
        "gold.hourly_sales up to the cut, before and after:",
        "columns  added: most",
        "columns  of another type: units: int, then bigint",
        "rows     1,000 the same, 2 changed, 3 new, 0 gone; 4 beyond the cut, which the stream gives again",
        "         window_start=2026-01-01 09:00:00: units is 1, becomes 2",
    ]


def test_a_rebuild_without_reason_or_of_another_table_is_refused(lake):
    bronze(lake, at(12, 30))
    with pytest.raises(BootstrapRefusedError, match=r"has not run .*tidemark bootstrap"):
        plan_rebuild(lake, a_pipeline())
    with pytest.raises(BootstrapRefusedError, match="nothing has to be built anew"):
        a_rebuild(lake, a_pipeline(trigger_interval="1 minute"))
    write(lake, "gold.other", {"units": [1]})
    with pytest.raises(BootstrapRefusedError, match=r"it wrote gold\.hourly_sales, and now writes gold\.other"):
        plan_rebuild(lake, a_pipeline(sink=Sink("gold.other")))


def balances(**measures):
    return a_pipeline(steps=(Running(by=("product_id",), measures=measures),))


def test_what_no_batch_builds_anew_is_sent_to_a_new_epoch(lake):
    bronze(lake, at(12, 30))
    begin_epoch(lake, balances(units="sum(quantity)"), 1)
    write(lake, "gold.hourly_sales", {"units": [1]}, stamp=a_stamp(ledger=LedgerEntry(started_ms=0)))
    changed = balances(units="max(quantity)")
    begins = r"Begin again with its changed definition: tidemark reset hourly_sales --empty-tables.*Then start it"
    for plans in (plan_rebuild, plan_bootstrap):
        with pytest.raises(BootstrapRefusedError, match=begins):
            plans(lake, changed)
    with pytest.raises(BackfillRefusedError, match="has changed") as told:
        plan_backfill(lake, changed, at(9), at(10))
    assert "tidemark reset hourly_sales --empty-tables" in str(told.value)
    assert "tidemark rebuild" not in str(told.value)
    with pytest.raises(BackfillRefusedError, match=r"late events cannot be counted .* `--as-streamed` gives back"):
        plan_backfill(lake, balances(units="sum(quantity)"), at(9), at(10))
