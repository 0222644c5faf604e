"""What a supervisor does about a job."""

from datetime import UTC, datetime, timedelta

from spark_jobs.control.supervision.reconcile import BUDGET, DRAIN, HUNG_S, JobState, decide
from spark_jobs.control.supervision.status import Status

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def seen(**changes):
    return JobState(**({"now": NOW, "order": 1, "wanted": True, "alive": False} | changes))


def status(state, **changes):
    return Status(**({"job": "streams", "state": state, "since": NOW, "order": 1} | changes))


def test_a_job_that_is_wanted_and_has_no_driver_gets_one():
    action, after = decide(seen(), status("stopped"))
    assert (action, after.state) == ("start", "starting")


def test_a_job_that_is_not_wanted_gets_none():
    assert decide(seen(wanted=False), status("stopped")) == (None, status("stopped"))


def test_a_driver_that_lives_is_left_alone():
    action, after = decide(seen(alive=True, spoke=True), status("starting"))
    assert (action, after.state) == (None, "running")


def test_a_driver_starts_until_it_has_spoken():
    assert decide(seen(alive=True), status("starting"))[1].state == "starting"


def test_a_driver_without_a_sign_of_life_is_killed():
    assert decide(seen(alive=True, spoke=True, silent_s=HUNG_S - 1), status("running"))[0] is None
    assert decide(seen(alive=True, spoke=True, silent_s=HUNG_S + 1), status("running"))[0] == "kill"


def test_a_driver_may_take_its_time_to_drain_and_is_killed_only_after_that():
    action, after = decide(seen(alive=True, wanted=False), status("running"))
    assert (action, after.state) == (None, "draining")
    draining = status("draining", since=NOW - DRAIN - timedelta(seconds=1))
    assert decide(seen(alive=True, wanted=False), draining)[0] == "kill"


def test_a_driver_that_died_is_started_again_after_a_pause_that_doubles():
    pauses = []
    before, at = status("running"), NOW
    for _ in range(BUDGET - 1):
        action, after = decide(seen(now=at, exit_code=-9), before)
        assert (action, after.state) == (None, "backing_off")
        pauses.append((after.next_start_at - at).total_seconds())
        at = after.next_start_at
        action, before = decide(seen(now=at), after)
        assert action == "start"
    assert pauses == [1, 2, 4, 8]


def test_a_driver_that_dies_too_often_is_given_up_until_the_next_order():
    ends = tuple(NOW - timedelta(seconds=second) for second in range(BUDGET - 1))
    action, failed = decide(seen(exit_code=1, last_lines=("no heap",)), status("running", ends=ends))
    assert (action, failed.state, failed.exit_code, failed.last_lines) == (None, "failed", 1, ("no heap",))
    assert decide(seen(now=NOW + timedelta(days=1)), failed) == (None, failed)
    action, after = decide(seen(order=2), failed)
    assert (action, after.state, after.ends) == ("start", "starting", ())


def test_another_supervisor_tries_what_was_given_up():
    """As the one of a machine that was started again with more memory."""
    ends = tuple(NOW - timedelta(seconds=second) for second in range(BUDGET))
    failed = status("failed", ends=ends, supervisor="a")
    assert decide(seen(supervisor="a"), failed) == (None, failed)
    action, after = decide(seen(supervisor="b"), failed)
    assert (action, after.state, after.ends) == ("start", "starting", ())


def test_a_driver_that_found_no_lake_is_tried_again_for_ever():
    ends = tuple(NOW - timedelta(seconds=second) for second in range(3 * BUDGET, 0, -1))
    _, after = decide(seen(exit_code=75), status("starting", ends=ends))
    assert (after.state, after.next_start_at) == ("backing_off", NOW + timedelta(minutes=1))


def test_ends_that_are_hours_apart_are_within_the_budget():
    ends = tuple(NOW - timedelta(minutes=11 + minute) for minute in range(BUDGET))
    assert decide(seen(now=NOW + timedelta(seconds=2)), status("backing_off", ends=ends))[0] == "start"


def test_a_driver_that_drained_as_asked_does_not_count_as_one_that_died():
    for before, drained in ((status("draining"), False), (status("running"), True)):
        action, after = decide(seen(wanted=True, drained=drained, exit_code=0), before)
        assert (action, after.ends) == ("start", ())


def test_an_end_is_counted_once():
    _, after = decide(seen(exit_code=-9), status("running"))
    assert len(after.ends) == 1
    assert len(decide(seen(exit_code=-9), after)[1].ends) == 1


def test_ends_that_lie_ahead_put_off_nothing():
    """As noted by a host whose clock goes ten minutes ahead."""
    ends = tuple(NOW + timedelta(minutes=10, seconds=second) for second in range(BUDGET))
    assert decide(seen(), status("backing_off", ends=ends))[0] == "start"
