"""Quarantines as the command shows them, what of them can be replayed, and how replays stand in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.accounting.ledger_compaction import compact_ledger
from spark_jobs.lake.accounting.replays import commits_of, open_replay, records
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.commit_records.history import newest_numbered
from spark_jobs.lake.commit_records.replay_commits import ReplayCommit, decode_replay
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.maintenance.readers import Need, needs
from spark_jobs.lake.tables import decisions
from spark_jobs.lake.tables.appends import append
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection, counted, masked, samples, selected
from spark_jobs.operations.replay import asking as replaying
from spark_jobs.operations.replay.execute import begin
from spark_jobs.operations.replay.lookup_plan import plan_lookup
from spark_jobs.operations.replay.plan import ReplayRefusedError, plan_replay
from spark_jobs.plan.quarantine import INSIDE_QUOTES, REPEATED_HEADER
from spark_jobs.spec import Enrich, Files, Kafka
from spark_jobs.spec.personal import MASK
from tests.support.builders import a_lake, a_pipeline, a_stamp, an_ingest, write

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.string()),
        ("_ingest_time", pa.timestamp("us", tz="UTC")),
        ("_source", pa.struct([("name", pa.string()), ("partition", pa.int32()), ("position", pa.int64())])),
        ("_epoch", pa.int32()),
        ("_batch_id", pa.int64()),
    ]
)


def set_aside(reason: str, raw: str | None = "{}", detail: str | None = None, *, hours: int = 0, epoch: int = 1) -> Any:
    return {
        "reason": reason,
        "detail": detail,
        "raw": raw,
        "_ingest_time": NOON + timedelta(hours=hours),
        "_source": {"name": "file", "partition": None, "position": hours},
        "_epoch": epoch,
        "_batch_id": hours,
    }


def a_quarantine(lake: Lake, *rows: Any) -> None:
    write(lake, "bronze.sales__quarantine", pa.Table.from_pylist(list(rows), schema=SCHEMA))


def has_run(lake: Lake, definition: Any) -> None:
    epoch = begin_epoch(lake, definition, 1)
    folder = Path(lake.path(epoch.folder))
    folder.mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "q"}')


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def us(instant: datetime) -> int:
    return int(instant.timestamp()) * 1_000_000


def test_rows_are_counted_by_reason_from_an_instant_on(lake: Lake) -> None:
    a_quarantine(lake, *(set_aside("future", hours=hour) for hour in range(3)), set_aside("it's off", hours=1))
    found = [(each.reason, each.rows, each.first, each.newest) for each in counted(lake, an_ingest(), Selection())]
    hour = timedelta(hours=1)
    assert found == [("future", 3, NOON, NOON + 2 * hour), ("it's off", 1, NOON + hour, NOON + hour)]
    later = Selection(reasons=("future", "it's off"), since_us=us(NOON + hour), until_us=us(NOON + 2 * hour))
    assert [(each.reason, each.rows) for each in counted(lake, an_ingest(), later)] == [("future", 1), ("it's off", 1)]


def test_samples_are_the_newest_of_each_reason_without_personal_values(lake: Lake) -> None:
    a_quarantine(
        lake,
        *(set_aside("future", f'{{"sale_id": "s{hour}", "quantity": {hour}}}', hours=hour) for hour in range(4)),
        set_aside("unparseable", '{"sale_id": "secret', "no JSON row"),
        set_aside("between(quantity, 1..)", '{"Sale_Id": "secret", "quantity": 0}', "sale_id is secret", hours=9),
    )
    shown = samples(lake, an_ingest(personal=("sale_id",)), Selection(), 2)
    assert {reason: len(rows) for reason, rows in shown.items()} == {
        "future": 2,
        "unparseable": 1,
        "between(quantity, 1..)": 1,
    }
    assert shown["future"] == [f'{{"sale_id": "{MASK}", "quantity": {hour}}}' for hour in (3, 2)]
    assert shown["unparseable"] == [f"{MASK}    no JSON row"]
    assert "secret" not in str(shown)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("a;1;2026", f"{MASK};1;2026"), ('"a;b";1;2026', f"{MASK};1;2026"), ("a;1", MASK), ("", MASK)],
)
def test_a_line_of_csv_is_masked_as_a_whole_where_its_places_do_not_fit(raw: str, shown: str) -> None:
    ingest = an_ingest(source=Files("in", format="csv", delimiter=";"), personal=("sale_id",))
    assert masked(ingest, raw) == shown


NOT_AGAIN = [
    set_aside("unreadable file", "/in/a.parquet"),
    set_aside("not UTF-8", "a\ufffd", "base64 of its bytes: YeQ="),
    set_aside("header", "a\ufffd;1", "expected a;b, got b;a"),
    set_aside("header", "a;b", REPEATED_HEADER),
    set_aside("unparseable", "a;b", INSIDE_QUOTES),
    set_aside("future", epoch=0),
]


@pytest.mark.parametrize("row", NOT_AGAIN, ids=lambda row: str(row["detail"] or row["reason"]))
def test_what_cannot_be_read_again_is_left_and_refused_by_name(lake: Lake, row: Any) -> None:
    a_quarantine(lake, row, set_aside("one_of(x)"), set_aside("unparseable", None))
    found = selected(lake, an_ingest(), 1, Selection())
    assert found.reasons == {"one_of(x)": 1, "unparseable": 1}
    assert [rows for (reason, _), rows in found.left.items() if reason == row["reason"]] == [1]
    if row["reason"] != "unparseable":
        with pytest.raises(QuarantineError, match="cannot be replayed: i"):
            selected(lake, an_ingest(), 1, Selection(reasons=("one_of(x)", row["reason"])))


def test_rows_from_before_a_reset_can_be_asked_for(lake: Lake) -> None:
    a_quarantine(lake, set_aside("future", epoch=1), set_aside("future", epoch=2))
    assert selected(lake, an_ingest(), 2, Selection()).rows == 1
    assert selected(lake, an_ingest(), 2, Selection(earlier_epochs=True)).rows == 2


def test_of_parquet_nothing_can_be_read_again_and_of_csv_no_skipped_lines(lake: Lake) -> None:
    a_quarantine(lake, set_aside("one_of(x)"), set_aside("skipped"))
    forms = {form: an_ingest(source=Files("in", format=form)) for form in ("parquet", "csv", "json")}
    found = {form: dict(selected(lake, ingest, 1, Selection()).reasons) for form, ingest in forms.items()}
    assert found == {"parquet": {}, "csv": {"one_of(x)": 1}, "json": {"one_of(x)": 1, "skipped": 1}}
    assert selected(lake, an_ingest(source=Kafka("sales")), 1, Selection()).rows == 2


def test_a_reason_that_is_not_there_is_refused_with_those_that_are(lake: Lake) -> None:
    a_quarantine(lake, set_aside("future"))
    with pytest.raises(QuarantineError, match=r"expected rows with reason 'futur'.* There is: `future`"):
        selected(lake, an_ingest(), 1, Selection(reasons=("futur",)))


def test_only_an_ingest_that_has_run_as_it_is_defined_is_replayed(lake: Lake) -> None:
    lookup = Enrich("silver.shops", on=("product_id",), columns={"city": "city"}, missing="quarantine")
    pipeline = a_pipeline(steps=(lookup, *a_pipeline().steps))
    with pytest.raises(ReplayRefusedError, match="expected an ingest"):
        plan_replay(lake, pipeline, Selection())
    with pytest.raises(MissingTableError, match="tidemark run hourly_sales"):
        plan_lookup(lake, pipeline, Selection())
    with pytest.raises(QuarantineError, match="sets nothing aside"):
        plan_lookup(lake, a_pipeline(), Selection())
    with pytest.raises(MissingTableError, match="tidemark run ingest_sales"):
        plan_replay(lake, an_ingest(), Selection())
    has_run(lake, an_ingest())
    a_quarantine(lake, set_aside("future"))
    with pytest.raises(CheckpointError, match="--earlier-epochs"):
        plan_replay(lake, an_ingest(max_future=timedelta(days=1)), Selection())
    # Rules may change, and it may have been started with --from.
    elsewhere = an_ingest(source=Files("elsewhere"), rules=())
    plan = plan_replay(lake, elsewhere, Selection())
    assert (plan.found.rows, plan.ingest.source) == (1, an_ingest().source)


def test_a_replay_is_noted_before_it_is_done_and_no_other_begins_meanwhile(lake: Lake) -> None:
    has_run(lake, an_ingest())
    a_quarantine(lake, set_aside("future"), set_aside("future", hours=1))
    plan = plan_replay(lake, an_ingest(), Selection(until_us=us(NOON) + 1))
    replay = begin(lake, plan, by="ada", comment="why")
    assert (replay.version, replay.rows, replay.selection) == (0, 1, plan.selection)
    assert open_replay(lake, "ingest_sales") == replay
    # Maintenance keeps the version that it reads, until it has ended.
    assert needs(lake) == {"bronze.sales__quarantine": Need(0, "ingest_sales")}
    with pytest.raises(ReplayRefusedError, match="another replay"):
        begin(lake, plan, by="bob")
    assert plan_replay(lake, an_ingest(), Selection()).unfinished == replay
    kept = records(lake, "ingest_sales")
    kept.append(2, replay.model_copy(update={"state": "ended"}))
    assert needs(lake) == {}
    assert begin(lake, plan, by="bob").by == "bob"


def test_a_replay_that_died_is_ended_by_its_command_with_no_rows_left(lake: Lake) -> None:
    has_run(lake, an_ingest())
    a_quarantine(lake, set_aside("future"), set_aside("one_of(x)"))
    named = Selection(reasons=("future",))
    replay = begin(lake, plan_replay(lake, an_ingest(), named), by="ada")
    open_table(lake, "bronze.sales__quarantine").delete("reason = 'future'")
    plan = plan_replay(lake, an_ingest(), named)
    assert (plan.unfinished, plan.found.rows) == (replay, 0)
    # What is asked afterwards, for the same command, refuses no reason either; the next command does.
    records(lake, "ingest_sales").append(2, replay.model_copy(update={"state": "ended"}))
    assert plan_replay(lake, an_ingest(), named, after_another=True).found.rows == 0
    with pytest.raises(QuarantineError, match="expected rows with reason 'future'"):
        plan_replay(lake, an_ingest(), named)


def replayed(run: str, role: Any, rows: int, **more: Any) -> ReplayCommit:
    return ReplayCommit(pipeline="ingest_sales", epoch=1, run=run, role=role, rows=rows, **more)


def ran(selected: int, replayed: int) -> LedgerEntry:
    terms = {"selected": selected, "replayed": replayed, "kept": selected - replayed}
    return LedgerEntry(kind="replay", started_ms=0, terms=terms)


def test_replays_are_in_the_ledger_also_when_the_logs_are_kept_elsewhere(lake: Lake) -> None:
    definition = an_ingest()
    has_run(lake, definition)
    entry = LedgerEntry(started_ms=0, terms={"read": 5, "on_time": 2, "quarantined": 3, "rows": 2})
    mine = {"pipeline": "ingest_sales", "query_id": "q"}
    a_quarantine(lake, *(set_aside("future", hours=hour) for hour in range(3)))
    beats = {"_heartbeat": [False, False]}
    write(lake, "bronze.sales", beats, stamp=a_stamp(0, ledger=entry, next_seq=5, **mine))

    def told() -> list[tuple[bool, str]]:
        return [(holds, text) for holds, text in audit.checks(lake, definition, 1, [(0, entry)]) if "replay" in text]

    def assert_holds() -> None:
        assert [text for holds, text in audit.checks(lake, definition, 1, [(0, entry)]) if not holds] == []

    assert_holds()
    begun = begin(lake, plan_replay(lake, definition, Selection()), by="ada")
    in_bronze = replayed(begun.run, "result", 2, first_seq=5, next_seq=8, txn=1, writer="w", ledger=ran(3, 2))
    write(lake, "bronze.sales", beats, stamp=in_bronze.encode())
    assert_holds()
    assert "still in the quarantine, too" in told()[0][1]
    for _ in range(2):
        assert newest_numbered(lake, "bronze.sales") == in_bronze
        compact_ledger(lake, "bronze.sales")
    released = replayed(begun.run, "quarantine", 2, released={1: 1, 7: 1})
    one = pa.Table.from_pylist([set_aside("future"), set_aside("future")], schema=SCHEMA)
    write(lake, "bronze.sales__quarantine", one, stamp=released.encode(), mode="overwrite")
    assert_holds()
    ((_, text),) = told()
    assert "read again 3 = replayed 2 + set aside as before 1, 2 taken out" in text
    compact_ledger(lake, "bronze.sales__quarantine")
    for folder in ("bronze/sales", "bronze/sales__quarantine"):
        assert commits_of(lake, folder.replace("/", "."), "ingest_sales")
    assert_holds()


def test_a_commit_of_a_replay_is_none_of_a_batch() -> None:
    commit = {"userMetadata": replayed("replay-1", "result", 1, next_seq=3).encode()}
    assert decode(commit) is None
    assert decode_replay(commit) == replayed("replay-1", "result", 1, next_seq=3)
    assert decode_replay({"userMetadata": a_stamp(0).encode()}) is None


def test_two_transaction_ids_of_one_append_both_conflict(lake: Lake) -> None:
    """What a replay relies on: whoever commits one of them meanwhile is noticed."""
    write(lake, "bronze.t", {"n": [1]})
    for theirs in ("ours", "the stream's"):
        opened = open_table(lake, "bronze.t")
        write_deltalake(
            lake.table_uri("bronze.t"),
            pa.table({"n": [2]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(theirs, 1)]),
        )
        both = [Transaction("ours", 2), Transaction("the stream's", 2)]
        with pytest.raises(Exception, match="Concurrent transaction"):
            append(lake, "bronze.t", opened, pa.table({"n": [3]}), CommitProperties(app_transactions=both))


def test_a_replay_can_be_looked_at_and_rejected_without_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "registry", lambda: {"ingest_sales": an_ingest(), "hourly_sales": a_pipeline()})
    has_run(lake, an_ingest())
    a_quarantine(lake, set_aside("future"), set_aside("not UTF-8", "\ufffd"), set_aside("future", hours=2))
    asked = replaying.asked_for([], None, "2026-11-24T13:00:00+00:00")
    found = replaying.look(lake, "ingest_sales", asked)
    assert found.reasons == {"future": 1}
    assert any("keeps    not UTF-8: 1 row; its bytes" in line for line in found.lines)
    replaying.reject(lake, "ingest_sales", found.reasons, by="ada", comment="no")
    (row,) = decisions.decisions_of(lake, "ingest_sales")
    assert (row["action"], row["decided_by"], row["subject"]) == ("reject", "ada", "replay of 1 rows (future 1)")
    with pytest.raises(QuarantineError, match="expected a registered one"):
        replaying.look(lake, "unknown", asked)
    with pytest.raises(QuarantineError, match="sets nothing aside"):
        replaying.look(lake, "hourly_sales", asked)
    with pytest.raises(QuarantineError, match="since: expected an instant"):
        replaying.asked_for([], "noon", None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None, result.exception
    return result.stdout


def test_the_commands_show_and_plan(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tidemark import Files, Ingest, Sink\n"
        "mine = Ingest(name='ingest_sales', source=Files('landing/sales'), event_time='sold_at',\n"
        "    columns={'sale_id': 'STRING', 'quantity': 'INT', 'sold_at': 'TIMESTAMP'}, sink=Sink('bronze.sales'))\n"
    )
    has_run(lake, an_ingest())
    a_quarantine(lake, set_aside("future", '{"sale_id": "a"}', "why"), set_aside("unreadable file", "/in/b", hours=1))
    at = ("--lake", lake.uri)
    shown = run("quarantine", str(file), *at)
    assert "2026-11-24 13:00:00" in shown
    assert 'future: {"sale_id": "a"}    why' in shown
    assert "nothing of this kind" in run("quarantine", str(file), "--reason", "x", *at)
    assert "/in/b" not in run("quarantine", str(file), "--samples", "0", *at)
    planned = run("replay", str(file), "--dry-run", *at)
    assert "reads    future: 1 row" in planned
    assert "keeps    unreadable file: 1 row; it stands for a whole file" in planned
    assert "Nothing was written: --dry-run." in planned
    later = run("replay", str(file), "--since", "2026-11-24T13:00", *at)
    assert "Nothing to do." in later
    assert open_replay(lake, "ingest_sales") is None
