"""The reference model of the late rules, on examples worked out by hand, and its laws."""

import random
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model import (
    Event,
    Heartbeat,
    Hopping,
    LatePair,
    Row,
    Session,
    Span,
    assert_conservation,
    first_events,
    joined,
    run,
    tumbling,
)

NOON = 12 * 60
"""Times in these examples are whole minutes since midnight, not milliseconds: the rules have no unit."""


def event(event_id, minute, key="k", value=1, passes_where=True):
    return Event(event_id, key, minute, value, passes_where)


def watermarks(outcome):
    return [(batch.late_watermark_ms, batch.watermark_ms) for batch in outcome.batches]


class TestWindows:
    def test_a_window_holds_its_start_and_not_its_end(self):
        assert tumbling(5).spans(5) == [Span(5, 10)]
        assert tumbling(5).spans(4) == [Span(0, 5)]

    def test_an_offset_shifts_the_grid(self):
        assert tumbling(24, offset_ms=6).spans(5) == [Span(-18, 6)]

    def test_an_event_is_in_size_over_every_hopping_windows(self):
        assert Hopping(15, 5).spans(12) == [Span(0, 15), Span(5, 20), Span(10, 25)]

    def test_a_size_that_is_no_multiple_of_every_gives_a_varying_number(self):
        assert Hopping(5, 3).spans(3) == [Span(0, 5), Span(3, 8)]
        assert Hopping(5, 3).spans(5) == [Span(3, 8)]

    def test_times_before_the_epoch_fall_into_the_window_below(self):
        assert tumbling(5).spans(-1) == [Span(-5, 0)]

    def test_windows_with_gaps_between_them_are_refused(self):
        with pytest.raises(ValueError, match="every <= size"):
            Hopping(5, 6)


class TestWatermark:
    def test_it_is_fixed_before_the_batch_and_knows_only_the_batches_before(self):
        batches = [[event("a", 100)], [event("b", 200)], [event("c", 300)]]
        outcome = run(batches, tumbling(5), delay_ms=10, no_data_batches=False)
        assert watermarks(outcome) == [(None, 0), (0, 90), (90, 190)]
        assert outcome.watermark_ms == 290

    def test_a_batch_without_data_follows_each_batch_that_moves_it(self):
        outcome = run([[event("a", 100)], [event("b", 50)]], tumbling(5), delay_ms=10)
        assert [batch.has_data for batch in outcome.batches] == [True, False, True]
        assert watermarks(outcome) == [(None, 0), (0, 90), (90, 90)]

    def test_at_the_end_only_the_last_batch_is_followed_by_one(self):
        batches = [[event("a", 100)], [event("b", 200)]]
        outcome = run(batches, tumbling(5), delay_ms=10, no_data_batches="at_end")
        assert watermarks(outcome) == [(None, 0), (0, 90), (90, 190)]

    def test_it_never_falls_and_never_is_below_zero(self):
        outcome = run([[event("a", 5)], [event("b", 100)], [event("c", 20)]], tumbling(5), delay_ms=10)
        assert watermarks(outcome) == [(None, 0), (0, 0), (0, 90), (90, 90)]

    def test_heartbeats_move_it_and_have_no_verdict(self):
        outcome = run([[event("a", 3)], [Heartbeat(100)]], tumbling(5), delay_ms=10)
        assert outcome.emitted == [Row("k", 0, 5, 1, 1)]
        assert outcome.verdicts == {"a": "on_time"}

    def test_filtered_events_move_it_unless_the_engine_filters_below_it(self):
        batches = [[event("a", 100, passes_where=False)]]
        assert run(batches, tumbling(5), delay_ms=10).watermark_ms == 90
        assert run(batches, tumbling(5), delay_ms=10, filtered_rows_move_watermark=False).watermark_ms == 0

    def test_grace_is_part_of_the_delay(self):
        assert run([[event("a", 100)]], tumbling(5), delay_ms=10, grace_ms=20).watermark_ms == 70


class TestLateness:
    def test_nothing_is_late_in_the_first_batch(self):
        outcome = run([[event("a", NOON), event("b", 1)]], tumbling(5), delay_ms=0)
        assert outcome.verdicts == {"a": "on_time", "b": "on_time"}

    def test_the_window_is_final_after_an_event_at_its_end_plus_the_delay(self):
        """Delay one minute, no grace: [12:00, 12:05) is final after an event at or past 12:06."""
        for last, is_final in ((NOON + 5, False), (NOON + 6, True)):
            outcome = run([[event("a", NOON)], [event("b", last)]], tumbling(5), delay_ms=1)
            assert (Row("k", NOON, NOON + 5, 1, 1) in outcome.emitted) is is_final

    def test_a_pair_is_late_when_its_window_ends_at_the_watermark(self):
        for end_of_window, verdict in ((90, "late"), (95, "on_time")):
            outcome = run([[event("a", 100)], [event("b", end_of_window - 1)]], tumbling(5), delay_ms=10)
            assert outcome.verdicts["b"] == verdict

    def test_an_old_event_in_an_open_window_is_on_time(self):
        outcome = run([[event("a", 100)], [event("b", 60)]], tumbling(60), delay_ms=10)
        assert outcome.verdicts["b"] == "on_time"

    def test_a_batch_judges_rows_by_the_watermark_before_and_closes_by_its_own(self):
        """Without batches of no data the row at 3 still counts in batch 1, which closes its window."""
        outcome = run([[event("a", 100)], [event("b", 3)]], tumbling(5), delay_ms=10, no_data_batches=False)
        assert outcome.verdicts["b"] == "on_time"
        assert outcome.batches[1].emitted == (Row("k", 0, 5, 1, 1),)
        assert run([[event("a", 100)], [event("b", 3)]], tumbling(5), delay_ms=10).verdicts["b"] == "late"

    def test_an_event_of_several_windows_is_partly_late(self):
        outcome = run([[event("a", 30)], [event("b", 12)]], Hopping(15, 5), delay_ms=10)
        assert outcome.verdicts["b"] == "partly_late"  # W = 20: [0,15) and [5,20) are over, [10,25) is not
        assert outcome.late_pairs == [LatePair(2, "b", 0, 15), LatePair(2, "b", 5, 20)]
        assert Row("k", 10, 25, 1, 1) in outcome.open

    def test_filtered_events_are_in_no_window(self):
        outcome = run([[event("a", 100)], [event("b", 3, passes_where=False)]], tumbling(5), delay_ms=10)
        assert outcome.verdicts["b"] == "filtered"
        assert outcome.late_pairs == []

    def test_what_came_within_grace_is_on_time_and_counted_apart(self):
        """Delay 10, grace 20, newest 100: W = 70, published 90. Ends at 75 to 90 are within grace."""
        second = [event("b", 69), event("c", 70), event("d", 89), event("e", 90)]
        outcome = run([[event("a", 100)], second], tumbling(5), delay_ms=10, grace_ms=20)
        assert outcome.verdicts == {i: "late" if i == "b" else "on_time" for i in "abcde"}
        assert outcome.batches[2].within_grace == 2

    def test_an_event_id_twice_is_refused(self):
        with pytest.raises(ValueError, match="'a' twice"):
            run([[event("a", 1), event("a", 2)]], tumbling(5), delay_ms=0)


class TestResults:
    def test_append_emits_a_window_once_with_its_count_and_sum(self):
        batches = [
            [event("a", 1, value=Decimal("1.50")), event("b", 4, value=Decimal("2.25"))],
            [event("c", 9)],
        ]
        outcome = run(batches, tumbling(5), delay_ms=0)
        assert outcome.emitted == [Row("k", 0, 5, 2, Decimal("3.75"))]
        assert outcome.open == (Row("k", 5, 10, 1, 1),)

    def test_update_emits_what_changed_as_it_is_at_the_moment(self):
        batches = [[event("a", 1)], [event("b", 2), event("c", 7)], [event("d", 8)]]
        outcome = run(batches, tumbling(5), delay_ms=10, mode="update")
        assert [batch.emitted for batch in outcome.batches] == [
            (Row("k", 0, 5, 1, 1),),
            (Row("k", 0, 5, 2, 2), Row("k", 5, 10, 1, 1)),
            (Row("k", 5, 10, 2, 2),),
        ]
        assert outcome.closed == []

    def test_keys_have_windows_of_their_own(self):
        outcome = run([[event("a", 1, key="x"), event("b", 1, key="y")]], tumbling(5), delay_ms=0)
        assert outcome.open == (Row("x", 0, 5, 1, 1), Row("y", 0, 5, 1, 1))


class TestSessions:
    def test_events_exactly_the_gap_apart_share_a_session(self):
        assert run([[event("a", 0), event("b", 5)]], Session(5), delay_ms=99).open == (Row("k", 0, 10, 2, 2),)
        assert len(run([[event("a", 0), event("b", 6)]], Session(5), delay_ms=99).open) == 2

    def test_an_event_between_two_sessions_joins_them(self):
        batches = [[event("a", 0), event("b", 8)], [event("c", 4)]]
        assert run(batches, Session(5), delay_ms=99).open == (Row("k", 0, 13, 3, 3),)

    def test_other_keys_stay_apart(self):
        assert len(run([[event("a", 0, key="x"), event("b", 1, key="y")]], Session(5), delay_ms=99).open) == 2

    def test_a_session_that_was_written_is_not_joined_again(self):
        """Gap 5, events at 0 to 5, watermark at 10, then one at 6: [0,10) and [6,11); a batch has [0,11)."""
        first = [event(f"e{minute}", minute) for minute in range(6)]
        outcome = run([first, [Heartbeat(10)], [event("late?", 6)], [Heartbeat(99)]], Session(5), delay_ms=0)
        assert outcome.verdicts["late?"] == "on_time"
        assert outcome.emitted == [Row("k", 0, 10, 6, 6), Row("k", 6, 11, 1, 1)]

    def test_lateness_is_judged_before_merging(self):
        """An event whose own session is over is late, though an open one begins within the gap."""
        outcome = run([[event("a", 10)], [Heartbeat(12)], [event("b", 6)]], Session(5), delay_ms=0)
        assert outcome.verdicts["b"] == "late"
        assert outcome.open == (Row("k", 10, 15, 1, 1),)

    def test_update_mode_is_refused(self):
        with pytest.raises(ValueError, match="Spark refuses"):
            run([], Session(5), delay_ms=0, mode="update")


times = st.integers(0, 60)
rows = st.one_of(
    st.tuples(st.sampled_from("xy"), times, st.integers(-3, 3), st.booleans()),
    times.map(Heartbeat),
)
windows = st.one_of(
    st.builds(lambda size, every, offset: Hopping(size, min(size, every), offset), *[st.integers(1, 12)] * 2, times),
    st.builds(Session, st.integers(1, 12)),
)
no_data = st.sampled_from([True, False, "at_end"])


@st.composite
def inputs(draw):
    batches = draw(st.lists(st.lists(rows, max_size=6), max_size=8))
    number = iter(range(1_000))
    return [[r if isinstance(r, Heartbeat) else Event(f"e{next(number)}", *r) for r in b] for b in batches]


def mode_for(window, mode):
    return "append" if isinstance(window, Session) else mode


delays = st.integers(0, 15)
modes = st.sampled_from(["append", "update"])


@given(inputs(), windows, delays, delays, modes, no_data)
def test_every_pair_is_counted_late_or_open(batches, window, delay, grace, mode, no_data_batches):
    mode = mode_for(window, mode)
    outcome = run(batches, window, delay_ms=delay, grace_ms=grace, mode=mode, no_data_batches=no_data_batches)
    assert_conservation(batches, window, outcome)
    if mode == "append":
        assert outcome.emitted == outcome.closed


@given(inputs(), windows, delays, modes, no_data, st.randoms(use_true_random=False))
def test_late_pairs_depend_on_events_batches_and_window_alone(batches, window, delay, mode, no_data_batches, dice):
    """Not on the mode, the keys, the values, or the order of the rows within a batch."""
    expected = run(batches, window, delay_ms=delay, no_data_batches=no_data_batches)
    others = [[_disguised(row, dice) for row in dice.sample(batch, len(batch))] for batch in batches]
    got = run(others, window, delay_ms=delay, mode=mode_for(window, mode), no_data_batches=no_data_batches)
    assert sorted(got.late_pairs) == sorted(expected.late_pairs)
    assert got.verdicts == expected.verdicts


@given(inputs(), windows, delays, no_data)
def test_the_order_of_rows_within_a_batch_does_not_change_the_rows(batches, window, delay, no_data_batches):
    forwards = run(batches, window, delay_ms=delay, no_data_batches=no_data_batches)
    backwards = run([batch[::-1] for batch in batches], window, delay_ms=delay, no_data_batches=no_data_batches)
    assert forwards.emitted == backwards.emitted
    assert forwards.open == backwards.open


@given(inputs(), windows, delays, no_data)
def test_a_fixed_window_closes_at_most_once(batches, window, delay, no_data_batches):
    if isinstance(window, Session):
        return
    closed = [
        (row.key, row.window_start_ms)
        for row in run(batches, window, delay_ms=delay, no_data_batches=no_data_batches).closed
    ]
    assert len(closed) == len(set(closed))


@given(inputs(), windows, delays, st.integers(1, 15))
def test_grace_splits_what_is_late_without_it_into_late_and_within_grace(batches, window, delay, grace):
    """For times well after 1970; pairs late at the delay alone = late with grace + within grace."""
    shifted = [[row._replace(event_time_ms=row.event_time_ms + 1_000) for row in batch] for batch in batches]
    alone = run(shifted, window, delay_ms=delay, no_data_batches=False)
    graceful = run(shifted, window, delay_ms=delay, grace_ms=grace, no_data_batches=False)
    within = sum(batch.within_grace for batch in graceful.batches)
    assert len(alone.late_pairs) == len(graceful.late_pairs) + within


@given(inputs(), windows, delays)
def test_with_everything_in_one_batch_nothing_is_late(batches, window, delay):
    together = [[row for batch in batches for row in batch]]
    assert run(together, window, delay_ms=delay).late_pairs == []


class TestFirstEvents:
    def test_a_key_is_forgotten_once_the_watermark_has_passed_it_by_within(self):
        batches = [[event("a", 10)], [event("b", 11)], [event("other", 22, key="x")], [event("c", 21)]]
        # With delay 2 the last batch has W = 20: `a` is remembered until 20.
        found = first_events(batches, delay_ms=2, within_ms=10)
        assert found.verdicts == {"a": "on_time", "b": "duplicate", "other": "on_time", "c": "on_time"}
        assert first_events(batches, delay_ms=2, within_ms=11).verdicts["c"] == "duplicate"

    def test_at_the_watermark_an_event_is_late_whatever_its_key(self):
        batches = [[event("a", 10)], [event("b", 8, key="x"), event("c", 9, key="y")]]
        assert first_events(batches, delay_ms=2, within_ms=5).of("late") == {"b"}
        # If the stream runs no batch without data in between, the second batch is judged by what was before the first.
        assert first_events(batches, delay_ms=2, within_ms=5, no_data_batches=False).of("late") == set()

    def test_what_is_filtered_or_has_no_time_is_no_first_event(self):
        batches = [[event("a", 1, passes_where=False), event("b", None), event("c", 1), event("d", 1)]]
        found = first_events(batches, delay_ms=0, within_ms=5)
        assert found.verdicts == {"a": "filtered", "b": "timeless", "c": "on_time", "d": "duplicate"}
        assert found.rows() == [("c",)]


def right(event_id, minute, key="k"):
    return Event(event_id, key, minute, source=1)


class TestJoined:
    def test_both_bounds_count_and_a_missing_key_matches_nothing(self):
        batches = [
            [event("l", 10), event("n", 10, key=None)],
            [right("r8", 8), right("r7", 7), right("r15", 15), right("r16", 16), right("rn", 10, key=None)],
        ]
        found = joined(batches, delays_ms=(0, 0), within_ms=5, before_ms=2)
        # The watermark is 10: from 7 nothing is within 2 any more.
        assert found.rows() == [("l", "r8"), ("l", "r15"), (None, "r7")]
        assert found.waiting == {"n", "r16", "rn"}

    def test_the_side_further_behind_has_the_watermark(self):
        batches = [[event("l", 10)], [event("l50", 50)], [event("l9", 9), right("r20", 20)], [right("r9", 9)]]
        found = joined(batches, delays_ms=(0, 1), within_ms=5, before_ms=0)
        assert found.of("late") == {"r9"}
        # Until the right side comes there is no watermark; then it is 19.
        assert found.written == [[], [], [], [("l", None), ("l9", None)], []]
        assert found.waiting == {"l50", "r20"}

    def test_an_event_waits_for_what_is_at_the_very_watermark(self):
        ends = [[event("l", 10)], [event("far", 99, key="x"), right("r", 15, key="x")]]
        assert joined(ends, delays_ms=(0, 0), within_ms=5, before_ms=0).rows() == []
        assert joined(ends, delays_ms=(0, 0), within_ms=4, before_ms=0).rows() == [("l", None)]


def test_conservation_notices_a_pair_that_is_missing():
    batches = [[event("a", 1), event("b", 2)]]
    outcome = run(batches, tumbling(5), delay_ms=0)
    with pytest.raises(AssertionError):
        assert_conservation(batches, tumbling(5), replace(outcome, open=()))


def _disguised(row: Event | Heartbeat, dice: random.Random) -> Event | Heartbeat:
    return row if isinstance(row, Heartbeat) else row._replace(key=dice.choice("pqr"), value=dice.randint(-9, 9))
