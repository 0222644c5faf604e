"""Months of small batches, with maintenance: what a look at the ledger and at the tables costs, and how large logs are.

Batches are written by the writer that streams use, without Spark. Maintenance runs after every thousandth, as if a day
had passed; without it (`--without`) the same figures grow.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from spark_jobs.commits.changes import Append
from spark_jobs.commits.writer import TableWriter
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import Starts, begin_epoch, fix_starts
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.commit_records.stamps import Role, Stamp
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables import inventory
from spark_jobs.lake.tables.opening import open_or_create
from spark_jobs.operations.maintain.execute import Maintenance
from spark_jobs.operations.maintain.plan import Pace
from spark_jobs.plan import logical as plan
from spark_jobs.spec import Aggregate, Files, Ingest, Pipeline, Sink, Table, Tumbling, Watermark

INGEST = Ingest(
    name="ingest_clicks",
    source=Files("landing/clicks"),
    columns={"user_id": "STRING", "clicked_at": "TIMESTAMP"},
    event_time="clicked_at",
    sink=Sink("bronze.clicks"),
)
CLICKS = Pipeline(
    name="clicks_by_user",
    source=Table("bronze.clicks"),
    event_time="clicked_at",
    watermark=Watermark(delay="1 minute"),
    steps=(Aggregate(window=Tumbling("5 minutes"), by=("user_id",), measures={"clicks": "count(*)"}),),
    sink=Sink("gold.clicks_by_user"),
)
EVENTS = 5
TIME = pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "bronze.clicks": pa.schema(
        [
            ("user_id", pa.string()),
            ("clicked_at", TIME),
            ("_event_id", pa.string()),
            ("_ingest_seq", pa.int64()),
            ("_ingest_time", TIME),
            ("_heartbeat", pa.bool_()),
        ]
    ),
    "gold.clicks_by_user": pa.schema(
        [
            ("window_start", TIME),
            ("window_end", TIME),
            ("user_id", pa.string()),
            ("clicks", pa.int64()),
            ("__events", pa.int64()),
            ("final_after", TIME),
            ("revision", pa.int32()),
            ("revised_at", TIME),
        ]
    ),
    "gold.clicks_by_user__late": pa.schema([("_epoch", pa.int32()), ("missed_windows", pa.list_(pa.int64()))]),
}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def make_tables(lake: Lake) -> None:
    """Tables as a start makes them."""
    for name, schema in SCHEMAS.items():
        statistics = "window_end" if name.startswith("gold") else "clicked_at,_ingest_seq"
        # A checkpoint names removed files for a week otherwise; here, for some thousand batches.
        properties = {
            "delta.enableExpiredLogCleanup": "false",
            "delta.deletedFileRetentionDuration": "interval 5 minutes",
        }
        if "late" not in name:
            properties["delta.dataSkippingStatsColumns"] = statistics
        open_or_create(lake, name, schema, properties)
    begin_epoch(lake, INGEST, 1)
    fix_starts(lake, begin_epoch(lake, CLICKS, 1), Starts(versions={"bronze.clicks": 0}))


def writer(lake: Lake, table: str, pipeline: str) -> TableWriter:
    """As a query has it."""
    return TableWriter(lake, table, "result", pipeline, query_id="made-by-hand", epoch=1)


def a_batch(number: int, bronze: TableWriter, gold: TableWriter) -> None:
    """One commit of the ingest, and one of its reader."""
    at = BEGIN + timedelta(minutes=5 * number)
    seq = number * EVENTS
    events = pa.Table.from_pylist(
        [
            {
                "user_id": f"u{index}",
                "clicked_at": at + timedelta(seconds=index),
                "_event_id": f"e{seq + index}",
                "_ingest_seq": seq + index,
                "_ingest_time": at,
                "_heartbeat": False,
            }
            for index in range(EVENTS)
        ],
        schema=SCHEMAS["bronze.clicks"],
    )
    read = {"read": EVENTS, "on_time": EVENTS, "rows": EVENTS}
    entry = LedgerEntry(started_ms=0, terms=read)
    bronze.commit(Append(events, EVENTS, 0), _stamp(bronze, number, EVENTS, entry, next_seq=seq + EVENTS))
    rows = pa.Table.from_pylist(
        [
            {
                "window_start": at,
                "window_end": at + timedelta(minutes=5),
                "user_id": "all",
                "clicks": EVENTS,
                "__events": EVENTS,
                "final_after": at + timedelta(minutes=5),
                "revision": 1,
                "revised_at": at,
            }
        ],
        schema=SCHEMAS["gold.clicks_by_user"],
    )
    version = bronze.lake.table_path("bronze.clicks")
    offset = f'{{"reservoirVersion":{bronze._version + 1},"index":-1,"isStartingVersion":false}}'
    pairs = {"pairs": EVENTS, "pairs_late": 0, "pairs_result": EVENTS, "state_rows": 0, "source_rows": EVENTS}
    entry = LedgerEntry(
        started_ms=0, terms={**read, **pairs, "rows": 1}, sources={f"DeltaSource[file:{version}]": offset}
    )
    gold.commit(Append(rows, 1, 0), _stamp(gold, number, 1, entry))


def _stamp(to: TableWriter, batch: int, rows: int, entry: LedgerEntry, *, next_seq: int | None = None) -> Stamp:
    role: Role = "result"
    return Stamp(
        pipeline=to.pipeline,
        epoch=1,
        batch_id=batch,
        role=role,
        rows=rows,
        query_id=to.query_id,
        ledger=entry,
        next_seq=next_seq,
    )


def look(lake: Lake, batches: int) -> None:
    """What there is, and what a look at it costs: processor time, which other work on the machine does not change."""
    began = time.process_time()
    equations = plan.build(CLICKS).equations
    ledger = epoch_ledger(lake, CLICKS.sink.table, CLICKS.name, 1, equations, last=200)
    checks = audit.checks(lake, CLICKS, 1, ledger)
    ledger_s = time.process_time() - began
    began = time.process_time()
    inventory.summaries(lake, {each.name: each for each in (INGEST, CLICKS)})
    tables_s = time.process_time() - began
    wrong = [said for holds, said in checks if not holds]
    assert not wrong, wrong
    assert ledger.totals["read"] == batches * EVENTS, ledger.totals
    figures = []
    for table in ("bronze.clicks", "gold.clicks_by_user", "ops.ledger"):
        folder = Path(lake.table_path(table))
        log = [path.stat().st_size for path in (folder / "_delta_log").glob("*")]
        figures.append(f"{len(log):,} / {sum(log) / 1e6:.1f} / {len([*folder.glob('*.parquet')]):,}")
    print(f"| {batches:,} | {ledger_s:.2f} | {tables_s:.2f} | {' | '.join(figures)} |", flush=True)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--without", action="store_true", help="no maintenance")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        make_tables(lake)
        bronze = writer(lake, "bronze.clicks", INGEST.name)
        gold = writer(lake, "gold.clicks_by_user", CLICKS.name)
        print("| batches | ledger CPU s | tables CPU s | bronze: log objects / MB / files | gold | ops.ledger |")
        print("|---|---|---|---|---|---|")
        for number in range(options.batches):
            a_batch(number, bronze, gold)
            if (number + 1) % 1000 == 0 and not options.without:
                # As if each thousand batches were a day, and two were kept.
                hour = timedelta(hours=1)
                pace = Pace(now=datetime.now(UTC) + 2 * hour, quiet=timedelta(0), in_flight=hour, fewest_commits=1_000)
                maintenance = Maintenance(lake, Retention(versions=hour, lookups=hour), pace)
                for table in maintenance.tables():
                    problem = maintenance.execute(table).problem
                    assert problem is None, problem
            if (number + 1) % (options.batches // 8) == 0:
                look(lake, number + 1)


if __name__ == "__main__":
    main()
