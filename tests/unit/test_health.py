"""When a pipeline needs a person."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.control.desired.orders import Order
from spark_jobs.control.monitoring.health import ColumnUsage, PipelineState, examine, summary
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, Pulse
from spark_jobs.control.supervision.status import End, Status
from spark_jobs.spec import Alerts
from tests.support.builders import a_pipeline

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVER = NOW - timedelta(days=1)


def ms(at):
    return int(at.timestamp() * 1000)


def seen(*, alerts=None, pipeline=None, figures=None, status=None, pulse=None, order=None, books=(), supervised=NOW):
    """A pipeline that is well, but for what is given."""
    definition = a_pipeline(**({"alerts": alerts} if alerts else {}))
    told = {
        "generation": 1,
        "state": "running",
        "since": EVER,
        "progressed_at": NOW,
        "figures": Figures(**(figures or {})),
    }
    of_driver = {
        "job": "streams",
        "term": 1,
        "host": "h",
        "pid": 1,
        "pid_born": "",
        "started_at": EVER,
        "at": NOW,
        "sequence": 9,
        "pipelines": {definition.name: PipelinePulse(**(told | (pipeline or {})))},
    }
    wanted = {
        "state": "running",
        "generation": 1,
        "definition": definition.to_json(),
        "fingerprint": "",
        "ordered_at": EVER,
        "ordered_by": "a test",
    }
    return PipelineState(
        now=NOW,
        definition=definition,
        order=Order(**(wanted | (order or {}))),
        status=Status(**({"job": "streams", "state": "running", "since": EVER} | (status or {}))),
        pulse=Pulse(**(of_driver | (pulse or {}))),
        books=books,
        supervised_at=supervised,
    )


def kinds(found):
    return [breach.kind for breach in examine(found)]


def test_a_pipeline_that_is_well_breaches_nothing():
    assert kinds(seen()) == []


def test_a_pipeline_that_is_to_be_stopped_breaches_nothing():
    assert kinds(seen(order={"state": "stopped"}, status={"state": "stopped"})) == []


LIMITS = [
    ("watermark-lag", {"watermark_ms": ms(NOW - timedelta(minutes=11))}, Alerts(max_watermark_lag="10 minutes")),
    ("source-lag", {"rows_behind": 11}, Alerts(max_rows_behind=10)),
    ("source-lag", {"rows_behind": 1, "behind_ms": 61_000}, Alerts(max_time_behind="1 minute")),
    ("processing-latency", {"latency_ms": 61_000}, Alerts(max_processing_latency="1 minute")),
    ("batch-duration", {"batch_ms": 61_000}, Alerts(max_batch_duration="1 minute")),
    ("checkpoint-duration", {"checkpoint_ms": 61_000}, Alerts(max_checkpoint_duration="1 minute")),
    ("checkpoint-size", {"checkpoint_bytes": 11}, Alerts(max_checkpoint_bytes=10)),
    ("state-rows", {"state_rows": 11}, Alerts(max_state_rows=10)),
    ("state-bytes", {"state_bytes": 11}, Alerts(max_state_bytes=10)),
    ("late-share", {"recent_read": 100, "recent_late": 11}, Alerts(max_late_share=0.1)),
    ("quarantine-share", {"recent_read": 100, "recent_quarantined": 11}, Alerts(max_quarantine_share=0.1)),
    ("backpressure", {"backpressure_since": NOW - timedelta(minutes=6)}, Alerts(backpressure_after="5 minutes")),
]


@pytest.mark.parametrize(("kind", "figures", "alerts"), LIMITS)
def test_a_figure_is_a_breach_only_above_a_limit_that_is_set(kind, figures, alerts):
    assert kinds(seen(figures=figures, alerts=alerts)) == [kind]
    unlimited = Alerts(**dict.fromkeys(Alerts.model_fields))
    assert kinds(seen(figures=figures, alerts=unlimited)) == []


@pytest.mark.parametrize(
    ("figures", "alerts"),
    [
        ({"watermark_ms": ms(NOW - timedelta(minutes=10))}, Alerts(max_watermark_lag="10 minutes")),
        ({"rows_behind": 10, "behind_ms": 60_000}, Alerts(max_rows_behind=10, max_time_behind="1 minute")),
        ({"latency_ms": 60_000}, Alerts(max_processing_latency="1 minute")),
        ({"state_rows": 10, "state_bytes": 10}, Alerts(max_state_rows=10, max_state_bytes=10)),
        ({"recent_read": 100, "recent_late": 10}, Alerts(max_late_share=0.1)),
        ({"backpressure_since": NOW - timedelta(minutes=5)}, Alerts(backpressure_after="5 minutes")),
    ],
)
def test_a_figure_at_its_limit_is_none(figures, alerts):
    assert kinds(seen(figures=figures, alerts=alerts)) == []


def test_a_share_of_a_handful_of_events_says_nothing():
    assert kinds(seen(figures={"recent_read": 99, "recent_late": 99})) == []


def test_fields_that_no_column_takes_are_told_by_name():
    found = replace(
        seen(), taken_by_columns=ColumnUsage(events=900, searched=200, unknown=21, fields=("price", "note"))
    )
    (breach,) = examine(found)
    assert breach.kind == "unknown-fields"
    assert "21 of 200 events" in breach.what
    assert "(price, note)" in breach.what
    at_the_limit = ColumnUsage(events=900, searched=200, unknown=20, fields=("note",))
    assert kinds(replace(found, taken_by_columns=at_the_limit)) == []
    off = seen(alerts=Alerts(max_unknown_share=None))
    assert kinds(replace(off, taken_by_columns=found.taken_by_columns)) == []


def test_columns_that_are_suddenly_null_are_told_by_name():
    found = replace(seen(), taken_by_columns=ColumnUsage(events=100, nulls={"price": 100, "drink": 99, "note": 3}))
    (breach,) = examine(found)
    assert breach.kind == "null-share"
    assert "price in 100 of 100 events" in breach.what
    assert "drink" not in breach.what
    off = seen(alerts=Alerts(max_null_share=None))
    assert kinds(replace(off, taken_by_columns=found.taken_by_columns)) == []


def test_a_handful_of_events_tells_nothing_of_fields_and_columns():
    few = ColumnUsage(events=99, searched=99, unknown=99, fields=("a",), nulls={"price": 99})
    assert kinds(replace(seen(), taken_by_columns=few)) == []


def test_a_pipeline_that_ends_no_batch_is_told_by_its_silence():
    quiet = {"progressed_at": NOW - timedelta(minutes=11)}
    assert kinds(seen(pipeline=quiet)) == ["no-progress"]


def test_a_pipeline_that_failed_is_told_with_its_error():
    (breach,) = examine(seen(pipeline={"state": "failed", "error": "no column `sold_at`", "since": EVER}))
    assert breach.kind == "not-running"
    assert "no column `sold_at`" in breach.what
    assert breach.since == EVER


def test_a_pipeline_that_is_tried_again_is_well_once_it_has_progressed():
    tried = {"state": "running", "error": "no", "failures": (NOW - timedelta(minutes=1),), "since": NOW}
    assert kinds(seen(pipeline=tried | {"progressed_at": NOW - timedelta(minutes=2)})) == ["not-running"]
    assert kinds(seen(pipeline=tried | {"progressed_at": NOW})) == []


def test_only_what_was_given_up_is_to_be_deployed_again():
    told = {
        state: examine(seen(pipeline={"state": state, "error": "disk full"}))[0].text(now=NOW)
        for state in ("failed", "retrying")
    }
    assert "What to do: fix what it says, then `tidemark deploy hourly_sales`\n" in told["failed"]
    assert "What to do: fix what it says, if it does not pass by itself\n" in told["retrying"]


def test_another_driver_on_the_checkpoint_is_no_failure_of_the_checkpoint():
    told = {
        "state": "retrying",
        "error": "runs on its checkpoint /lake/_checkpoints/x",
        "error_kind": "ConcurrentDriverError",
    }
    assert kinds(seen(pipeline=told)) == ["not-running"]


def test_a_failure_of_the_checkpoint_has_a_name_of_its_own():
    error = "cannot write /lake/_checkpoints/top_products/epoch-1/state/0/3.delta"
    assert kinds(seen(pipeline={"state": "retrying", "error": error})) == ["checkpoint-failing"]


def test_a_driver_that_is_gone_is_told_with_what_it_said_last():
    gone = {"state": "failed", "exit_code": 1, "last_lines": ("java: no heap",), "ends": (), "since": EVER}
    (breach,) = examine(seen(status=gone))
    assert breach.kind == "not-running"
    assert "exit code 1" in breach.what
    assert "java: no heap" in breach.what


def test_a_restart_of_a_driver_is_told_only_if_it_takes_long():
    def back_off(seconds):
        return {"state": "backing_off", "since": NOW - timedelta(seconds=seconds), "exit_code": -9}

    assert kinds(seen(status=back_off(1))) == []
    assert kinds(seen(status=back_off(31))) == ["not-running"]
    assert kinds(seen(status=back_off(-600))) == ["not-running"], "a clock that goes wrong hides nothing"


def test_a_driver_without_a_sign_of_life_is_told():
    assert kinds(seen(pulse={"at": NOW - timedelta(seconds=31)})) == ["not-running"]
    assert kinds(seen(pulse={"at": NOW - timedelta(seconds=29)})) == []


def test_a_driver_whose_spark_hangs_is_told_and_has_no_rate():
    well, hangs = (
        seen(pulse={"spark_silent_s": seconds}, figures={"input_rows_per_s": 73.0}) for seconds in (29.0, 31.0)
    )
    assert kinds(well) == []
    assert "73 events/s" in summary(well)
    (breach,) = examine(hangs)
    assert breach.kind == "not-running"
    assert breach.what == "Its driver hangs: Spark has not answered in it for 31 seconds."
    assert breach.since == NOW - timedelta(seconds=31)
    assert "replaces it" in breach.remedy
    assert "running" not in summary(hangs)
    assert "events/s" not in summary(hangs)


def test_a_supervisor_that_is_gone_is_told_with_how_to_start_one():
    assert kinds(seen(supervised=NOW - timedelta(seconds=60))) == []
    assert kinds(seen(supervised=None)) == []
    (breach,) = examine(seen(supervised=NOW - timedelta(seconds=61)))
    assert breach.kind == "no-supervisor"
    assert "silent for 61 seconds" in breach.what
    assert "`make up`" in breach.remedy


def test_a_driver_and_a_supervisor_that_are_both_gone_are_both_told():
    gone = NOW - timedelta(seconds=61)
    found = seen(supervised=gone, pulse={"at": gone}, figures={"input_rows_per_s": 73.0})
    assert kinds(found) == ["no-supervisor", "not-running"]
    assert all("`tidemark supervise`" in breach.remedy for breach in examine(found))
    assert summary(found).startswith("its driver gives no sign of life: the last is 61 seconds old")
    assert "events/s" not in summary(found)


def test_a_supervisor_that_is_gone_hides_no_limit_that_is_broken():
    late = {"watermark_ms": ms(NOW - timedelta(minutes=11))}
    limits = Alerts(max_watermark_lag="10 minutes")
    found = seen(supervised=NOW - timedelta(seconds=61), figures=late, alerts=limits)
    assert kinds(found) == ["no-supervisor", "watermark-lag"]


def test_a_pipeline_may_take_two_minutes_to_start():
    fresh = {"progressed_at": None, "state": "starting"}
    began = NOW - timedelta(minutes=1)
    assert kinds(seen(pipeline=fresh, order={"ordered_at": began})) == []
    assert kinds(seen(pipeline=fresh, pulse={"started_at": began})) == []
    assert kinds(seen(pipeline=fresh)) == ["no-progress"]


def test_a_pipeline_of_an_older_generation_has_not_started_yet():
    assert kinds(seen(order={"generation": 2, "ordered_at": NOW})) == []
    assert kinds(seen(order={"generation": 2})) == ["no-progress"]


def test_an_order_that_no_supervisor_has_taken_is_told_as_such():
    stopped = {"state": "stopped", "order": 3, "since": EVER}
    later = {"generation": 2, "ordered_at": NOW - timedelta(minutes=3)}
    assert kinds(replace(seen(status=stopped, order=later), newest_order=4)) == ["no-supervisor"]
    assert kinds(replace(seen(status=stopped, order=later), newest_order=3)) == ["not-running"]
    assert kinds(replace(seen(status=stopped, order=later | {"ordered_at": NOW}), newest_order=4)) == []


def test_without_a_limit_of_silence_a_start_may_take_for_ever():
    fresh = {"progressed_at": None, "state": "starting"}
    assert kinds(seen(pipeline=fresh, alerts=Alerts(max_silence=None))) == []
    began = {"started_at": NOW - timedelta(minutes=9)}
    assert kinds(seen(pipeline=fresh, pulse=began, alerts=Alerts(max_silence="10 minutes"))) == []
    assert kinds(seen(pipeline=fresh, pulse=began, alerts=Alerts(max_silence="5 minutes"))) == ["no-progress"]


FAILURES = tuple(NOW - timedelta(minutes=minute) for minute in (9, 5, 1))


def an_end(at):
    return End(at=at, term=3, host="h", exit_code=1, cause="java.lang.OutOfMemoryError", log="/logs/streams/000003.log")


def test_restarts_are_told_with_what_the_pipeline_failed_with():
    driver = {"log": "/logs/streams/000004.log"}
    failed = {"failures": FAILURES, "error": "no space is left"}
    (breach,) = examine(seen(pipeline=failed, pulse=driver, status={"last_end": an_end(FAILURES[1])}))
    assert breach.what.endswith("It failed last at 11:59:00 UTC: no space is left")
    assert "/logs/streams/000004.log" in breach.remedy


def test_restarts_are_told_with_how_the_driver_ended_and_its_log():
    ended = {"ends": FAILURES, "last_end": an_end(FAILURES[2]), "last_lines": ("Connection refused",)}
    (breach,) = examine(seen(status=ended, pulse={"log": "/logs/streams/000004.log"}))
    assert breach.what.endswith(
        "Its driver (term 3) ended last at 11:59:00 UTC with exit code 1: java.lang.OutOfMemoryError."
    )
    assert "/logs/streams/000003.log on h" in breach.remedy
    assert "000004" not in breach.remedy
    assert "`tidemark acknowledge hourly_sales`" in breach.remedy


def test_restarts_count_from_the_deploy_on():
    ended = {"ends": FAILURES, "last_end": an_end(FAILURES[2])}
    assert kinds(seen(status=ended, order={"ordered_at": NOW - timedelta(minutes=10)})) == ["restarts"]
    fresh = seen(status=ended, order={"ordered_at": NOW - timedelta(minutes=6)})
    assert kinds(fresh) == []
    assert "restarted 2 times" in summary(fresh)


def test_restarts_that_were_acknowledged_count_no_more():
    ended = {"ends": FAILURES, "last_end": an_end(FAILURES[2])}
    known = replace(seen(status=ended), acknowledged_at=NOW - timedelta(seconds=30))
    assert kinds(known) == []
    assert "restarted" not in summary(known)
    more = {"ends": (*FAILURES, *[NOW - timedelta(seconds=second) for second in (20, 10, 5)])}
    assert kinds(replace(seen(status=ended | more), acknowledged_at=NOW - timedelta(seconds=30))) == ["restarts"]


def test_books_that_do_not_balance_are_told():
    assert kinds(seen(books=("batch 3: read 10 events, accounts for 9",))) == ["unbalanced-ledger"]


def test_restarts_of_the_driver_and_of_the_pipeline_count_together():
    ends = tuple(NOW - timedelta(minutes=minute) for minute in (50, 20))
    failures = (NOW - timedelta(minutes=5),)
    assert kinds(seen(status={"ends": ends})) == []
    found = seen(status={"ends": ends}, pipeline={"failures": failures})
    assert kinds(found) == ["restarts"]
    assert "restarted 3 times within the hour" in summary(found)
    old = tuple(NOW - timedelta(minutes=61) for _ in range(9))
    assert kinds(seen(status={"ends": old})) == []


def test_a_breach_says_what_since_when_what_to_do_and_where_to_read_on():
    found = seen(figures={"watermark_ms": ms(NOW - timedelta(hours=3))}, alerts=Alerts(max_watermark_lag="1 hour"))
    assert examine(found)[0].text(now=NOW) == (
        "Results are final up to 2026-03-01 09:00:00 UTC only, 3 hours behind the clock; the limit is 1 hour.\n"
        "Since 2026-03-01 10:00:00 UTC (2 hours).\n"
        "What to do: see whether the source sends, and events of which time\n"
        "More: docs/operate/runbook.md#watermark-lag"
    )
