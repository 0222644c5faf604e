"""Orders, leases, alerts and mutes as objects of a lake."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.orders import NotDeployedError
from spark_jobs.control.monitoring import alert_log, mutes
from spark_jobs.control.monitoring.alert_log import Change
from spark_jobs.control.monitoring.marks import last_look
from spark_jobs.control.monitoring.monitor import look, mark_reported
from spark_jobs.control.supervision import status, terms
from spark_jobs.control.supervision.lease import LEASE_S, Lease, active_supervisor
from spark_jobs.control.supervision.terms import FencedError
from spark_jobs.job.loop import Fence
from spark_jobs.lake.checkpoints.epochs import open_epoch
from spark_jobs.lake.errors import CheckpointError, LakeUnavailableError
from spark_jobs.lake.store import records as store_records
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.spec import Alerts, Sink
from tests.support.builders import a_lake, a_pipeline, an_aggregate, an_ingest_of_sales, write
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Number(BaseModel):
    value: int


def test_of_many_that_change_a_record_at_once_exactly_one_does(tmp_path):
    lake = a_lake(tmp_path)

    def add_one(_):
        while True:
            records = Records(lake, "_control/counter", Number)
            number, before = records.newest()
            try:
                records.append(number + 1, Number(value=(before.value if before else 0) + 1))
            except RecordTakenError:
                continue
            return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(60)))
    assert Records(lake, "_control/counter", Number).newest() == (60, Number(value=60))


def test_old_records_are_removed_and_no_number_is_given_twice_to_who_is_slow(tmp_path, monkeypatch):
    lake = a_lake(tmp_path)
    slow, others = (Records(lake, "_control/counter", Number) for _ in range(2))
    seen, _ = slow.newest()
    for number in range(1, 61):
        others.append(number, Number(value=number))
    with pytest.raises(RecordTakenError):
        slow.append(seen + 1, Number(value=0))
    monkeypatch.setattr(store_records, "_KEPT_FOR", timedelta(0))
    for number in range(61, 81):
        others.append(number, Number(value=number))
    assert len(list((tmp_path / "_control/counter").iterdir())) == 21
    assert slow.newest() == (80, Number(value=80))


@pytest.mark.parametrize("left", [b"", b'{"val'])
def test_a_record_that_a_loss_of_power_has_cut_counts_as_the_one_before(tmp_path, left):
    lake = a_lake(tmp_path)
    records = Records(lake, "_control/counter", Number)
    for number in (1, 2):
        records.append(number, Number(value=10 * number))
    (tmp_path / "_control/counter/000003.json").write_bytes(left)
    assert Records(lake, "_control/counter", Number).newest() == (3, Number(value=20))
    Records(lake, "_control/counter", Number).append(4, Number(value=40))
    assert records.newest() == (4, Number(value=40))

    (tmp_path / "_control/other").mkdir()
    (tmp_path / "_control/other/000001.json").write_bytes(left)
    assert Records(lake, "_control/other", Number).newest() == (1, None)


def test_numbers_may_grow_beyond_their_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(store_records, "_KEPT_FOR", timedelta(0))
    lake = a_lake(tmp_path)
    for number in range(999_990, 1_000_045):
        Records(lake, "_control/counter", Number).append(number, Number(value=number))
        assert Records(lake, "_control/counter", Number).newest_number() == number
    assert len(list((tmp_path / "_control/counter").iterdir())) <= 41


def test_a_lease_that_a_loss_of_power_has_cut_runs_out(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    assert Lease(lake, host="a", pid=1, clock=clock).hold()
    (tmp_path / "_control/_supervisor/renewals/000001.json").write_bytes(b"")
    next_one = Lease(lake, host="b", pid=2, clock=clock)
    assert not next_one.hold()
    clock.now += LEASE_S
    assert next_one.hold()


def test_leases_of_long_ago_leave_nothing_behind(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    for number in range(8):
        lease = Lease(lake, host="a", pid=number, clock=clock)
        lease.hold()
        clock.now += LEASE_S
        assert lease.hold()
    assert len(list((tmp_path / "_control/_supervisor/renewals").iterdir())) <= 2


def test_a_lake_that_vanishes_is_told_and_is_not_made_again(tmp_path):
    lake, clock = a_lake(tmp_path / "lake"), Clock()
    deploy(lake, [a_pipeline()])
    records, lease = orders.records(lake, "streams"), Lease(lake, host="a", pid=1, clock=clock)
    assert records.newest()[0] == 1
    assert lease.hold()
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    for looks in (records.newest, lease.hold, lambda: look(lake, now=NOW)):
        clock.now += LEASE_S
        with pytest.raises(LakeUnavailableError):
            looks()
        assert not (tmp_path / "lake").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "lake")
    assert records.newest()[0] == 1
    assert lease.hold()


def test_an_empty_folder_in_the_place_of_a_lake_is_not_taken_for_it(tmp_path):
    """A disk that is not mounted leaves its mount point."""
    lake, clock = a_lake(tmp_path / "lake"), Clock()
    deploy(lake, [a_pipeline()])
    lease = Lease(lake, host="a", pid=1, clock=clock)
    assert lease.hold()
    terms.records(lake, "streams").append(1, terms.Term(host="a", supervisor="a/1", begun_at=NOW))
    fence = Fence(lake, "streams", 1)
    fence.check()
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    a_lake(tmp_path / "lake")
    for looks in (lease.hold, fence.check_now, lambda: look(lake, now=NOW)):
        clock.now += LEASE_S
        with pytest.raises(LakeUnavailableError, match=r"mounted|was there a moment ago"):
            looks()
        assert list((tmp_path / "lake").iterdir()) == []


def test_a_driver_of_an_older_term_is_told_apart_from_a_lake_that_is_gone(tmp_path):
    lake = a_lake(tmp_path)
    for number in (1, 2):
        terms.records(lake, "streams").append(number, terms.Term(host="a", supervisor="a/1", begun_at=NOW))
    Fence(lake, "streams", 2).check()
    with pytest.raises(FencedError, match="term 2 has taken over; this one, of term 1, ends"):
        Fence(lake, "streams", 1).check()


def test_the_monitor_tells_why_a_lake_cannot_be_written(tmp_path):
    lake = a_lake(tmp_path)
    deploy(lake, [a_pipeline()])
    (tmp_path / "_control/_monitor").write_text("no folder")
    with pytest.raises(LakeUnavailableError, match=r"Not a directory.*Nothing was recorded at this look"):
        look(lake, now=NOW)


def test_deploying_what_runs_already_changes_nothing(tmp_path):
    lake = a_lake(tmp_path)
    (first,) = deploy(lake, [a_pipeline()])
    (second,) = deploy(lake, [a_pipeline()])
    assert (first.generation, first.changed) == (1, True)
    assert (second.generation, second.changed) == (1, False)
    assert orders.records(lake, "streams").newest_number() == 1


def test_a_changed_rate_limit_or_alert_is_a_new_generation(tmp_path):
    lake = a_lake(tmp_path)
    deploy(lake, [a_pipeline()])
    (ordered,) = deploy(lake, [a_pipeline(trigger_interval="10 seconds")])
    assert (ordered.generation, ordered.changed) == (2, True)


def test_nothing_is_ordered_where_a_definition_does_not_fit_its_checkpoint(tmp_path):
    lake = a_lake(tmp_path)
    open_epoch(lake, a_pipeline())
    changed = a_pipeline(steps=(an_aggregate(measures={"units": "max(quantity)"}),))
    with pytest.raises(CheckpointError, match=r"has changed \(steps\).*tidemark reset"):
        deploy(lake, [an_ingest_of_sales(), changed])
    assert orders.all_desired(lake) == {}


def test_a_pipeline_that_moves_to_another_job_stops_in_the_old_one(tmp_path):
    lake = a_lake(tmp_path)
    deploy(lake, [a_pipeline(), an_ingest_of_sales()])
    deploy(lake, [a_pipeline(job="nightly")])
    desired = orders.all_desired(lake)
    assert set(desired["streams"].running) == {"ingest_sales"}
    assert set(desired["nightly"].running) == {"hourly_sales"}


def test_an_order_keeps_the_definition_as_it_was_deployed(tmp_path):
    lake = a_lake(tmp_path)
    for definition in (a_pipeline(), an_ingest_of_sales()):
        deploy(lake, [definition])
        assert orders.all_desired(lake)["streams"].pipelines[definition.name].parsed() == definition


def test_stopping_what_was_never_deployed_is_refused_with_what_was(tmp_path):
    lake = a_lake(tmp_path)
    deploy(lake, [a_pipeline()])
    with pytest.raises(NotDeployedError, match=r"`shop_totals` has not been deployed.*Deployed: hourly_sales"):
        orders.stop(lake, ["hourly_sales", "shop_totals"], by="a test")
    assert set(orders.all_desired(lake)["streams"].running) == {"hourly_sales"}
    (stopped,) = orders.stop(lake, ["hourly_sales"], by="a test")
    assert stopped.changed
    assert not orders.stop(lake, ["hourly_sales"], by="a test")[0].changed


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_of_two_supervisors_one_is_active_until_its_lease_has_run_out(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    first = Lease(lake, host="a", pid=1, clock=clock)
    second = Lease(lake, host="b", pid=2, clock=clock)
    assert first.hold()
    for _ in range(10):
        clock.now += LEASE_S / 2
        assert first.hold()
        assert not second.hold()
    clock.now += LEASE_S - 1
    assert not second.hold()
    clock.now += LEASE_S
    assert second.hold()
    assert not first.hold()
    assert active_supervisor(lake)[0].host == "b"


def test_a_lease_that_is_released_is_free_at_once(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    first, second = (Lease(lake, host=host, pid=1, clock=clock) for host in "ab")
    assert first.hold()
    assert not second.hold()
    first.release()
    assert active_supervisor(lake) is None
    assert second.hold()


def a_change(pipeline="top", kind="late-share", **changes):
    parts = {"pipeline": pipeline, "job": "streams", "kind": kind, "began": True, "at": NOW, "since": NOW}
    return Change(**(parts | {"message": "11 of 100 were late\nmore"} | changes))


def history(*minutes, confirmed=True):
    """For each minute, of (breached, muted): what is recorded and what is told; True where it began."""
    state, recorded, told = alert_log.OpenAlerts(), [], []
    for minute, (breached, muted) in enumerate(minutes):
        at = NOW + timedelta(minutes=minute)
        now = {("top", "late-share"): a_change(at=at)} if breached else {}
        state, changed = alert_log.after(state, now, at=at)
        telling = alert_log.to_report(state, muted=["top"] if muted else [])
        recorded.append([change.began for change in changed])
        told.append([change.began for change in telling])
        if confirmed:
            state = alert_log.mark_reported(state, telling)
    return recorded, told


WELL, BROKEN = (False, False), (True, False)
WELL_MUTED, BROKEN_MUTED = (False, True), (True, True)


def test_a_breach_is_told_only_when_it_begins_and_when_it_clears():
    recorded, told = history(WELL, BROKEN, BROKEN, WELL, WELL, BROKEN)
    assert recorded == told == [[], [True], [], [False], [], [True]]


def test_a_breach_that_outlasts_a_mute_is_told_when_the_mute_is_over():
    recorded, told = history(BROKEN_MUTED, BROKEN_MUTED, BROKEN, WELL)
    assert recorded == [[True], [], [], [False]]
    assert told == [[], [], [True], [False]]
    assert history(BROKEN_MUTED, WELL_MUTED, WELL)[1] == [[], [], []]


def test_the_end_of_what_was_told_is_told_during_a_mute_too():
    assert history(BROKEN, BROKEN_MUTED, WELL_MUTED, WELL)[1] == [[True], [], [False], []]


def test_what_could_not_be_told_is_given_again():
    recorded, told = history(BROKEN, BROKEN, confirmed=False)
    assert (recorded, told) == ([[True], []], [[True], [True]])


def test_a_breach_keeps_the_time_since_when_it_is(tmp_path):
    """Of one that has no time of its own: it is from the look that has found it."""
    lake = a_lake(tmp_path)
    open_epoch(lake, a_pipeline())
    write(lake, "gold.hourly_sales", {"n": [1]})
    deploy(lake, [a_pipeline()])
    (log,) = (tmp_path / "gold/hourly_sales/_delta_log").glob("*.json")
    log.write_text("no log")
    first = datetime.now(UTC).replace(microsecond=0)
    for minutes, ago in ((0, "0.0 seconds"), (1, "60 seconds")):
        found = look(lake, now=first + timedelta(minutes=minutes))
        (text,) = found.reports[0].breaches
        assert text.splitlines()[1] == f"Since {first:%Y-%m-%d %H:%M:%S} UTC ({ago})."
        mark_reported(lake, found)
    assert found.changes == ()


def test_a_table_that_cannot_be_read_is_the_trouble_of_its_pipeline_only(tmp_path):
    lake = a_lake(tmp_path)
    broken, well = a_pipeline(), a_pipeline(name="other", sink=Sink("gold.other"))
    for each in (broken, well):
        open_epoch(lake, each)
        write(lake, each.sink.table, {"n": [1]})
    deploy(lake, [broken, well])
    (log,) = (tmp_path / "gold/hourly_sales/_delta_log").glob("*.json")
    log.write_text("no log")
    reports = {report.pipeline: report for report in look(lake, now=datetime.now(UTC)).reports}
    assert reports["other"].healthy
    (breach,) = reports["hourly_sales"].breaches
    assert "gold.hourly_sales" in breach
    assert "docs/operate/runbook.md#table-unreadable" in breach


def test_a_monitor_lives_and_a_table_has_moved_only_once_that_was_told(tmp_path):
    lake = a_lake(tmp_path)
    open_epoch(lake, a_pipeline())
    write(lake, "gold.hourly_sales", {"n": [1, 2]})
    deploy(lake, [a_pipeline()])
    for _ in range(2):  # as where the first one ended before anybody was told
        found = look(lake, now=NOW)
        assert [(move.table, move.version, move.rows) for move in found.moves] == [("gold.hourly_sales", 0, 2)]
        assert last_look(lake) is None
    mark_reported(lake, found)
    assert look(lake, now=NOW).moves == ()
    assert last_look(lake) == NOW


def test_a_mute_ends_by_itself_or_when_it_is_taken_back(tmp_path):
    lake = a_lake(tmp_path)
    mutes.mute(lake, ["top", "totals"], until=NOW + timedelta(hours=1))
    assert mutes.muted(lake, now=NOW) == {"top", "totals"}
    mutes.mute(lake, ["top"], until=None)
    assert mutes.muted(lake, now=NOW) == {"totals"}
    assert mutes.muted(lake, now=NOW + timedelta(hours=1)) == frozenset()


def test_a_supervisor_that_is_gone_is_told_within_two_looks(tmp_path):
    lake, began = a_lake(tmp_path), datetime.now(UTC)
    deploy(lake, [a_pipeline(alerts=Alerts(max_silence=None))])

    def renewed(at):
        (tmp_path / "_control/_supervisor/renewals/000001.json").write_text(f'{{"sequence": 1, "at": "{at}"}}')

    def reported_at(minutes):
        seen = look(lake, now=began + timedelta(minutes=minutes))
        mark_reported(lake, seen)
        return [(change.kind, change.began) for change in seen.changes]

    assert Lease(lake, host="a", pid=1).hold()
    status.records(lake, "streams").append(1, status.Status(job="streams", state="running", since=began, order=1))
    assert reported_at(0) == []
    assert reported_at(1.5) == [("no-supervisor", True)]
    renewed(began + timedelta(minutes=2))
    assert reported_at(2.5) == [("no-supervisor", False)]

    # Nobody could look, nor the supervisor renew, for an hour; it does so only after the first look.
    assert reported_at(60) == []
    renewed(began + timedelta(minutes=60.2))
    assert reported_at(61) == []
    assert reported_at(62) == [("no-supervisor", True)]

    # It had been gone before.
    assert reported_at(90) == []
