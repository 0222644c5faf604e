"""Real orders joined with their payments, from files to results: `make verify DATA=folder`."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.spec import Files, Ingest, Join, Pipeline, Sink, Table, Watermark
from tests.support import lakes, model
from tests.support.outside import data_file, run, write_files

pytestmark = pytest.mark.outside_data

Row = Mapping[str, str]

ORDERS, PAYMENTS = 8_135, 8_924
WITHOUT_A_TIME = (161, 146)  # payments, and orders that they are of
WITHIN = {"1 hour": timedelta(hours=1), "1 day": timedelta(days=1), "30 days": timedelta(days=30)}
# In the order in which they are stored each batch reaches over two years: many come too late, and many do not.
LATEST, KEEP = "the latest of the other side", timedelta(days=30)
DELAY_AS_STORED = timedelta(days=120)
# As they came nothing does: no side is out of order, and the watermark is that of the side further behind.
LATE = {"as they came": {"left": 0, "right": 0}, "as stored": {"left": 3_208, "right": 3_795}}
ORDER_TIME, PAYMENT_TIME = "order_purchase_timestamp", "approved_at"
ROWS_PER_FILE = 2_000


def instant(text: str) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def order_id(row: Row) -> str:
    return row["order_id"]


def payment_id(row: Row) -> str:
    return f"{row['order_id']} {row['payment_sequential']}"


@dataclass(frozen=True)
class Arrival:
    """Orders and payments in an order of arrival, and the pipelines that join them."""

    orders: Sequence[Row]
    payments: Sequence[Row]
    delay: timedelta
    lake: Lake
    pipelines: Mapping[str, Pipeline]

    @cached_property
    def judged(self) -> Mapping[str, str]:
        """Order or payment -> what the model says of it; those without an event time never came so far."""
        sides = (
            [[(order_id(row), row[ORDER_TIME]) for row in file] for file in in_files(self.orders)],
            [[(payment_id(row), row[PAYMENT_TIME]) for row in file] for file in in_files(self.payments)],
        )
        close = model.Heartbeat(lakes.ms(datetime(2100, 1, 1, tzinfo=UTC)))
        batches: list[list[model.Event | model.Heartbeat]] = []
        # One file of each side a batch, behind the last one the heartbeat that closes the side.
        for files in zip_longest(*([*side, None] for side in sides), fillvalue=()):
            batches.append([])
            for source, file in enumerate(files):
                if file is None:
                    batches[-1].append(close._replace(source=source))
                    continue
                times = ((name, instant(text)) for name, text in file)
                batches[-1] += [
                    model.Event(name, None, lakes.ms(time), source=source) for name, time in times if time is not None
                ]
        delay_ms = self.delay // timedelta(milliseconds=1)
        found = model.joined(batches, delays_ms=(delay_ms, delay_ms), within_ms=0, before_ms=0, no_data_batches=False)
        return found.verdicts

    def in_time(self) -> set[str]:
        return {name for name, verdict in self.judged.items() if verdict == "on_time"}

    def late(self) -> dict[str, set[str]]:
        orders = set(map(order_id, self.orders))
        late = {name for name, verdict in self.judged.items() if verdict == "late"}
        return {"left": late & orders, "right": late - orders}

    def written(self, name: str) -> Counter[tuple[str, str | None, str | None]]:
        """Side, order and payment of each row of the result."""
        rows = lakes.rows(self.lake, f"gold.{name}")
        return Counter(
            (
                row["_side"],
                None if row["_side"] == "right" else order_id(row),
                None if row["_side"] == "left" else payment_id(row),
            )
            for row in rows
        )

    def written_late(self, name: str) -> list[tuple[str, str]]:
        rows = lakes.rows(self.lake, f"gold.{name}__late")
        return [(row["_side"], order_id(row) if row["_side"] == "left" else payment_id(row)) for row in rows]


def in_files(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + ROWS_PER_FILE] for start in range(0, len(rows), ROWS_PER_FILE)]


def by_duckdb(in_time: set[str], within: timedelta) -> Counter[tuple[str, str, str]]:
    """Matches, straight from the files."""
    connection = duckdb.connect()
    connection.register("in_time", pa.table({"name": sorted(in_time)}))
    connection.execute(f"CREATE TABLE orders AS FROM read_csv('{data_file('olist_orders.csv')}')")
    connection.execute(f"CREATE TABLE payments AS FROM read_csv('{data_file('olist_order_payments.csv')}')")
    found = connection.execute(
        """
        WITH dated AS (
            SELECT order_id, order_id || ' ' || payment_sequential AS payment, order_approved_at AS approved_at
            FROM payments JOIN orders USING (order_id)
        )
        SELECT 'both', order_id, payment
        FROM orders JOIN dated USING (order_id)
        WHERE approved_at BETWEEN order_purchase_timestamp AND order_purchase_timestamp + to_seconds(?)
            AND order_id IN (SELECT name FROM in_time) AND payment IN (SELECT name FROM in_time)
        """,
        [within.total_seconds()],
    )
    return Counter((side, order, payment) for side, order, payment in found.fetchall())


def ingest(name: str, landing: Path, columns: Sequence[str], event_time: str) -> Ingest:
    types = {column: "TIMESTAMP" if column in (ORDER_TIME, PAYMENT_TIME) else "STRING" for column in columns}
    return Ingest(
        name=f"ingest_{name}",
        source=Files(str(landing), format="csv", max_files_per_trigger=1),
        columns=types,
        event_time=event_time,
        sink=Sink(f"bronze.{name}"),
    )


def joined_within(within: str, name: str, *, delay: timedelta, prefix: str = "") -> Pipeline:
    join = Join(Table(f"bronze.{prefix}payments"), on=("order_id",), event_time=PAYMENT_TIME, within=within, how="full")
    return joined_by(join, name, delay=delay, prefix=prefix)


def joined_by(join: Join, name: str, *, delay: timedelta, prefix: str = "") -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table(f"bronze.{prefix}orders"),
            event_time=ORDER_TIME,
            watermark=Watermark(delay=delay),
            steps=(join,),
            sink=Sink(f"gold.{name}"),
        )
    )


def write_csv(folder: Path, rows: Sequence[Row]) -> None:
    files = [[",".join(rows[0]), *(",".join(row.values()) for row in file)] for file in in_files(rows)]
    write_files(folder, ["\n".join(file).encode() for file in files], "csv")


@pytest.fixture(scope="module")
def arrivals(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Arrival]:
    with data_file("olist_orders.csv").open() as file:
        orders: list[Row] = list(csv.DictReader(file))
    approved_at = {order_id(row): row["order_approved_at"] for row in orders}
    purchased_at = {order_id(row): row[ORDER_TIME] for row in orders}
    with data_file("olist_order_payments.csv").open() as file:
        payments: list[Row] = [{**row, PAYMENT_TIME: approved_at[order_id(row)]} for row in csv.DictReader(file)]
    folder = tmp_path_factory.mktemp("payments")
    lake = Lake(str(folder / "lake")).ensure_exists()
    replayed = Arrival(
        sorted(orders, key=lambda row: row[ORDER_TIME]),
        # What was never approved comes when it was ordered.
        sorted(payments, key=lambda row: row[PAYMENT_TIME] or purchased_at[order_id(row)]),
        timedelta(0),
        lake,
        {
            **{within: joined_within(within, f"within_{at}", delay=timedelta(0)) for at, within in enumerate(WITHIN)},
            LATEST: joined_by(
                Join(Table("bronze.payments"), on=("order_id",), event_time=PAYMENT_TIME, keep=KEEP, how="full"),
                "with_latest",
                delay=timedelta(0),
            ),
        },
    )
    as_stored = joined_within("30 days", "stored", delay=DELAY_AS_STORED, prefix="stored_")
    stored = Arrival(orders, payments, DELAY_AS_STORED, lake, {"30 days": as_stored})
    definitions: list[Ingest | Pipeline] = []
    for prefix, arrival in (("", replayed), ("stored_", stored)):
        for name, rows, event_time in (
            ("orders", arrival.orders, ORDER_TIME),
            ("payments", arrival.payments, PAYMENT_TIME),
        ):
            write_csv(folder / f"{prefix}{name}", rows)
            definitions.append(ingest(f"{prefix}{name}", folder / f"{prefix}{name}", list(rows[0]), event_time))
        definitions += arrival.pipelines.values()
    run(spark, lake, definitions)
    return {"as they came": replayed, "as stored": stored}


MATCHED = [("as they came", within) for within in WITHIN] + [("as stored", "30 days")]

CASES = [*MATCHED, ("as they came", LATEST)]


@pytest.mark.parametrize(("order", "within"), CASES)
def test_every_order_and_payment_is_matched_alone_late_or_without_a_time(
    arrivals: Mapping[str, Arrival], order: str, within: str
) -> None:
    arrival = arrivals[order]
    pipeline = arrival.pipelines[within]
    written, late = arrival.written(pipeline.name), Counter(arrival.written_late(pipeline.name))
    orders = {row[1] for row in written if row[1] is not None}
    late_orders = {name for side, name in late if side == "left"}
    assert len(orders) + len(late_orders) == ORDERS
    assert orders | late_orders == set(map(order_id, arrival.orders))
    payments = {row[2] for row in written if row[2] is not None}
    late_payments = {name for side, name in late if side == "right"}
    prefix = "stored_" if order == "as stored" else ""
    # As an ingest sees it, a row without an event time is no event.
    quarantine = [row["raw"].split(",") for row in lakes.rows(arrival.lake, f"bronze.{prefix}payments__quarantine")]
    null_event_time = {f"{order} {number}" for order, number, *_ in quarantine}
    assert (len(null_event_time), len({order for order, *_ in quarantine})) == WITHOUT_A_TIME
    assert len(payments) + len(late_payments) + len(null_event_time) == PAYMENTS
    assert payments | late_payments | null_event_time == set(map(payment_id, arrival.payments))
    totals = Totals.of(row for _, row in lakes.ledger(arrival.lake, pipeline))
    assert totals["left_on_time"] + totals["left_late"] == totals["left_read"] == ORDERS
    assert totals["right_on_time"] + totals["right_late"] == totals["right_read"] == PAYMENTS - WITHOUT_A_TIME[0]
    lakes.assert_balanced(arrival.lake, pipeline)


@pytest.mark.parametrize(("order", "within"), CASES)
def test_what_is_late_is_what_plain_python_finds(arrivals: Mapping[str, Arrival], order: str, within: str) -> None:
    arrival = arrivals[order]
    late = arrival.late()
    assert {side: len(names) for side, names in late.items()} == LATE[order]
    found = arrival.written_late(arrival.pipelines[within].name)
    assert Counter(found) == Counter((side, name) for side, names in late.items() for name in names)


@pytest.mark.parametrize(("order", "within"), MATCHED)
def test_the_matches_of_what_was_in_time_equal_duckdbs(
    arrivals: Mapping[str, Arrival], order: str, within: str
) -> None:
    arrival = arrivals[order]
    written = arrival.written(arrival.pipelines[within].name)
    in_time = arrival.in_time()
    matches = by_duckdb(in_time, WITHIN[within])
    matched = {name for _, *names in matches for name in names}
    orders = set(map(order_id, arrival.orders))
    expected: Counter[tuple[str, str | None, str | None]] = Counter(matches)
    expected.update(("left", name, None) if name in orders else ("right", None, name) for name in in_time - matched)
    assert written == expected
    # There is something of each kind to be wrong about.
    assert {side for side, *_ in written} == {"both", "left", "right"}


def test_without_a_bound_each_has_the_latest_of_the_other_side_at_its_time(arrivals: Mapping[str, Arrival]) -> None:
    arrival = arrivals["as they came"]
    in_time, orders, paid = arrival.in_time(), dict[str, datetime](), dict[str, list[tuple[datetime, int, str]]]()
    for row in arrival.orders:
        at = instant(row[ORDER_TIME])
        if order_id(row) in in_time and at is not None:
            orders[order_id(row)] = at
    for number, row in enumerate(arrival.payments):
        at = instant(row[PAYMENT_TIME])
        if payment_id(row) in in_time and at is not None:
            paid.setdefault(order_id(row), []).append((at, number, payment_id(row)))
    expected: Counter[tuple[str, str | None, str | None]] = Counter()
    for order, at in orders.items():
        # Of one instant, payments come first.
        earlier = [payment for payment in paid.get(order, ()) if at - KEEP <= payment[0] <= at]
        latest = max(earlier, default=None)
        expected["both" if latest else "left", order, latest[2] if latest else None] += 1
    for order, payments in paid.items():
        for at, _, payment in payments:
            ordered = orders.get(order)
            held = ordered is not None and ordered < at <= ordered + KEEP
            expected["both" if held else "right", order if held else None, payment] += 1
    assert arrival.written(arrival.pipelines[LATEST].name) == expected
    assert {side for side, *_ in expected} == {"both", "left", "right"}
