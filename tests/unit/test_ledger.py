"""The ledger's arithmetic: a history that is consistent balances, and no figure of it can change unnoticed."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.accounting.ledger import discrepancies as _discrepancies
from spark_jobs.plan.logical import build
from tests.support.builders import a_batch, a_pipeline, a_running_total

FATES = ("on_time", "partly_late", "late", "duplicate", "quarantined", "filtered")
FIGURES = ("read", *FATES, "pairs", "pairs_late", "pairs_result")


WINDOWS = build(a_pipeline()).equations
TOTALS = build(a_running_total()).equations


def discrepancies(rows, equations=WINDOWS):
    return _discrepancies(rows, equations)


def numbered(*rows):
    return list(enumerate(rows))


class TestEvents:
    def test_a_batch_balances_when_every_event_met_one_fate(self):
        row = a_batch(21, on_time=6, partly_late=5, late=4, duplicate=3, quarantined=2, filtered=1)
        assert row.accounted == 21
        assert row.balanced

    @pytest.mark.parametrize("fate", FATES)
    def test_an_event_too_many_is_found_whatever_its_fate(self, fate):
        row = a_batch(10).with_terms(**{fate: a_batch(10)[fate] + 1})
        assert discrepancies(numbered(row)) == ("batch 0: read 10 events, accounts for 11",)

    def test_an_event_that_went_missing_is_found(self):
        assert discrepancies(numbered(a_batch(2), a_batch(10, on_time=9))) == (
            "batch 1: read 10 events, accounts for 9",
        )

    def test_events_within_grace_are_on_time_and_not_counted_again(self):
        assert a_batch(10, within_grace=4).balanced


class TestPairs:
    def test_pairs_may_stay_open_while_there_is_state_for_them(self):
        assert discrepancies(numbered(a_batch(10, pairs_result=0, state_rows=3))) == ()

    def test_open_pairs_without_state_are_lost(self):
        assert discrepancies(numbered(a_batch(10, pairs_result=7, state_rows=0))) == (
            "batch 0: 3 (event, window) pairs are in no result, not late and not in state",
        )

    def test_more_groups_than_open_pairs_cannot_be(self):
        assert discrepancies(numbered(a_batch(10, pairs_result=7, state_rows=4))) == (
            "batch 0: 4 rows in state for 3 open (event, window) pairs",
        )

    def test_a_result_of_more_than_was_read_is_found(self):
        assert discrepancies(numbered(a_batch(10, pairs_result=12))) == (
            "batch 0: results and late rows hold 2 (event, window) pairs more than were read",
        )

    def test_a_pair_that_is_late_and_in_a_result_is_found(self):
        assert discrepancies(numbered(a_batch(10, pairs_late=1))) == (
            "batch 0: results and late rows hold 1 (event, window) pairs more than were read",
        )

    def test_missing_pairs_are_told_again_only_when_more_go_missing(self):
        rows = numbered(a_batch(10, pairs_result=12), a_batch(10), a_batch(10, pairs_result=11))
        assert discrepancies(rows) == (
            "batch 0: results and late rows hold 2 (event, window) pairs more than were read",
            "batch 2: results and late rows hold 3 (event, window) pairs more than were read",
        )

    def test_pairs_of_one_batch_may_be_in_the_result_of_a_later_one(self):
        rows = numbered(a_batch(10, pairs_result=0, state_rows=2), a_batch(0, pairs_result=10, state_rows=0))
        assert discrepancies(rows) == ()

    def test_an_update_sink_holds_its_own_pairs(self):
        assert discrepancies(numbered(a_batch(10, pairs_result=None, state_rows=99)), TOTALS) == ()

    def test_without_windows_state_says_nothing_about_open_pairs(self):
        rows = numbered(a_batch(10, pairs_result=7, state_rows=0))
        assert discrepancies(rows, TOTALS) == ()


class TestBatches:
    def test_a_batch_that_is_missing_is_named(self):
        rows = [(0, a_batch(1)), (2, a_batch(1))]
        assert discrepancies(rows) == ("batch 2: expected batch 1 next; its ledger row is missing",)

    def test_the_first_batch_is_number_zero(self):
        assert discrepancies([(1, a_batch(1))]) == ("batch 1: expected batch 0 next; its ledger row is missing",)

    def test_nothing_read_is_balanced(self):
        assert discrepancies([]) == ()


class TestWatermarks:
    def test_a_batch_is_judged_by_the_watermark_of_the_one_before(self):
        rows = numbered(a_batch(1, watermark_ms=7), a_batch(1, watermark_ms=9, late_watermark_ms=8))
        assert discrepancies(rows) == ("batch 1: judged by watermark 8, the batch before had 7",)

    def test_a_watermark_never_falls(self):
        rows = numbered(a_batch(1, watermark_ms=7), a_batch(1, watermark_ms=6, late_watermark_ms=7))
        assert discrepancies(rows) == ("batch 1: watermark 6 fell from 7",)

    def test_what_came_within_grace_was_on_time(self):
        assert discrepancies(numbered(a_batch(3, within_grace=4))) == ("batch 0: 4 within grace of 3 on time",)


class TestTotals:
    def test_they_are_sums(self):
        totals = Totals.of([a_batch(3, late=1, on_time=2, pairs_result=None), a_batch(4, rows=2, heartbeats=1)])
        assert (totals.batches, totals["read"], totals["on_time"], totals["late"]) == (2, 7, 6, 1)
        assert (totals["pairs"], totals["pairs_result"], totals["rows"], totals["heartbeats"]) == (7, 4, 2, 1)

    def test_open_is_what_is_neither_late_nor_in_a_result(self):
        assert Totals.of([a_batch(10, pairs=12, pairs_late=2, pairs_result=7)]).rest(WINDOWS[-1]) == 3


@st.composite
def histories(draw):
    """Batches as a run with windows writes them: pairs are opened, wait in state, and end in a result or as late."""
    rows, waiting = [], 0
    batches = draw(st.integers(1, 6))
    for batch_id in range(batches):
        fates = {fate: draw(st.integers(0, 5)) for fate in FATES}
        extra = draw(st.integers(0, 5)) if fates["on_time"] else 0  # events in several windows
        missed = fates["late"] + fates["partly_late"]
        counted = fates["on_time"] + fates["partly_late"] + extra
        waiting += counted
        closed = waiting if batch_id == batches - 1 else draw(st.integers(0, waiting))
        waiting -= closed
        rows.append(
            a_batch(
                sum(fates.values()),
                started_ms=batch_id,
                **fates,
                pairs=counted + missed,
                pairs_late=missed,
                pairs_result=closed,
                state_rows=draw(st.integers(1, waiting)) if waiting else 0,
            )
        )
    return numbered(*rows)


@given(histories())
def test_a_consistent_history_has_no_discrepancy(rows):
    assert discrepancies(rows) == ()
    assert Totals.of(row for _, row in rows).rest(WINDOWS[-1]) == 0


@given(histories(), st.sampled_from(FIGURES), st.integers(-5, 5).filter(bool), st.data())
def test_changing_any_one_figure_of_a_finished_history_is_found(rows, figure, by, data):
    index = data.draw(st.integers(0, len(rows) - 1))
    batch_id, row = rows[index]
    rows[index] = (batch_id, row.with_terms(**{figure: row[figure] + by}))
    assert discrepancies(rows) != ()


@given(histories().filter(lambda rows: len(rows) > 1), st.data())
def test_leaving_out_any_batch_but_the_last_is_found(rows, data):
    index = data.draw(st.integers(0, len(rows) - 2))
    assert discrepancies(rows[:index] + rows[index + 1 :]) != ()


@given(histories())
def test_totals_are_the_sums_of_the_batches(rows):
    totals = Totals.of(row for _, row in rows)
    for figure in FIGURES:
        assert totals[figure] == list(accumulate(row[figure] for _, row in rows))[-1]
