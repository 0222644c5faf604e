"""The simulator: the same seed gives the same shop, and the truth says what was done to it."""

import csv
import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from pydantic import ValidationError

from spark_jobs.simulator import (
    FORMATS,
    STREAM_NAMES,
    BadTarget,
    DeliveryFailed,
    Disorder,
    Shop,
    bulk_sales,
    read_truth,
    run,
    simulate_files,
)
from spark_jobs.simulator.arrivals import arrivals
from spark_jobs.simulator.file_sink import FileSink
from spark_jobs.simulator.folders import ObjectFolder, open_folder
from spark_jobs.simulator.kafka_sink import KafkaSink
from spark_jobs.simulator.malformed import kinds_for
from spark_jobs.simulator.progress import Tally
from spark_jobs.simulator.timeline import timeline

START = datetime(2024, 5, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
ROUGH = Disorder(disorder=0.3, late=0.05, duplicates=0.1, malformed=0.1, future=0.05)


def shop(**settings) -> Shop:
    return Shop(**{"seed": 7, "start": START, "rate": None, "streams": ("sales",), **settings})


def emit(out: Path, a_shop: Shop, rows: int = 2_000, **options):
    return simulate_files(a_shop, out=str(out), rows=rows, **{"rows_per_file": 500, **options})


def lines(out: Path, stream: str = "sales") -> list[str]:
    return [line for path in sorted((out / stream).iterdir()) for line in path.read_text().splitlines()]


def truth(out: Path, stream: str = "sales"):
    return read_truth(out / "_truth", stream)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def parsed(line: str):
    return json.loads(line, parse_float=Decimal)


def is_sound(line: str, stream: str) -> bool:
    """Whether a strict reader of this stream's schema takes the line."""
    columns = FORMATS[stream].columns
    try:
        row = parsed(line)
        assert row.keys() == columns.keys()
        for name, kind in columns.items():
            if row[name] is None:
                assert name not in (FORMATS[stream].key, FORMATS[stream].event_time)
            elif kind == "timestamp":
                assert row[name].endswith("Z")
                datetime.fromisoformat(row[name])
            else:
                assert isinstance(row[name], {"string": str, "int": int, "decimal": Decimal, "double": Decimal}[kind])
    except (ValueError, AssertionError, AttributeError):
        return False
    return True


class FakeClock:
    """Advances when somebody waits."""

    def __init__(
        self, now: datetime = START + timedelta(days=30), on_wait: Callable[[int], None] | None = None
    ) -> None:
        self.now, self.waits, self.on_wait = now.timestamp(), 0, on_wait

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic_s(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> None:
        self.waits += 1
        self.now += seconds
        if self.on_wait is not None:
            self.on_wait(self.waits)


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 sales of a rough shop, and the truth about them."""
    folder = tmp_path_factory.mktemp("rough")
    emit(folder, shop(disorder=ROUGH), rows=3_000)
    return folder


class TestDeterminism:
    def test_the_same_seed_gives_the_same_bytes(self, tmp_path):
        for folder in ("a", "b"):
            emit(tmp_path / folder, shop(streams=STREAM_NAMES, density=0.25, disorder=ROUGH), rows=1_000)
        files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
        assert len(files) >= 10
        for path in files:
            assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path

    def test_another_seed_gives_other_rows(self, tmp_path):
        emit(tmp_path / "a", shop(seed=1), rows=50)
        emit(tmp_path / "b", shop(seed=2), rows=50)
        assert lines(tmp_path / "a") != lines(tmp_path / "b")

    def test_the_cut_of_the_files_does_not_change_the_rows(self, tmp_path):
        emit(tmp_path / "a", shop(disorder=ROUGH), rows=1_000, rows_per_file=37)
        emit(tmp_path / "b", shop(disorder=ROUGH), rows=1_000, rows_per_file=1_000)
        assert lines(tmp_path / "a") == lines(tmp_path / "b")

    def test_the_pace_of_the_clock_does_not_change_the_rows(self, tmp_path):
        paced = shop(rate=100.0, speed=60.0, disorder=ROUGH)
        emit(tmp_path / "a", paced, rows=400, clock=FakeClock())
        emit(tmp_path / "b", paced, rows=400, clock=FakeClock(START + timedelta(days=400)))
        emit(tmp_path / "c", shop(density=100 / 60, disorder=ROUGH), rows=400)
        assert lines(tmp_path / "a") == lines(tmp_path / "b") == lines(tmp_path / "c")

    def test_a_stream_does_not_depend_on_which_others_are_emitted(self, tmp_path):
        emit(tmp_path / "alone", shop(disorder=Disorder.none()), rows=300)
        emit(tmp_path / "all", shop(streams=STREAM_NAMES, disorder=Disorder.none()), rows=1_800)
        with_others = lines(tmp_path / "all")
        assert len(with_others) >= 300
        assert lines(tmp_path / "alone")[:300] == with_others[:300]


class TestShares:
    def test_they_are_within_binomial_bounds(self, rough):
        rows = truth(rough)
        originals = [row for row in rows if row.duplicate_of is None]
        counts = Counter(row.arrival for row in originals)
        shares = {
            "late": (counts["late"], ROUGH.late),
            "disordered": (counts["disordered"], ROUGH.disorder * (1 - ROUGH.late)),
            "duplicates": (len(rows) - len(originals), ROUGH.duplicates),
            "malformed": (sum(row.malformed is not None for row in originals), ROUGH.malformed),
            "future": (sum(row.future for row in originals), ROUGH.future),
        }
        total = len(originals)
        for name, (count, share) in shares.items():
            assert abs(count - total * share) < 4.5 * math.sqrt(total * share * (1 - share)), (name, count)

    def test_none_means_none(self, tmp_path):
        slow = {"reading_every": "1 minute", "position_every": "1 minute"}
        calm = shop(streams=STREAM_NAMES, density=0.25, disorder=Disorder.none(), **slow)
        progress = emit(tmp_path, calm, rows=5_000)
        assert (progress.disordered, progress.late, progress.duplicates, progress.malformed) == (0, 0, 0, 0)
        for stream in STREAM_NAMES:
            assert all(is_sound(line, stream) for line in lines(tmp_path, stream))
            times = [parsed(line)[FORMATS[stream].event_time] for line in lines(tmp_path, stream)]
            assert times == sorted(times)

    def test_late_before_disordered_is_refused(self):
        with pytest.raises(ValidationError, match="late_after: expected at least max_disorder"):
            Disorder(max_disorder="1 hour", late_after="30 minutes")

    def test_a_start_without_a_zone_is_refused(self):
        with pytest.raises(ValidationError, match="expected a time with its zone"):
            Shop(start=datetime(2024, 5, 1))


class TestArrival:
    def test_disorder_is_bounded_and_lateness_begins_beyond_it(self, rough):
        for row in truth(rough):
            delay_ms = ms(row.arrival_time) - ms(row.event_time)
            match row.arrival:
                case "ordered":
                    assert delay_ms == 0
                case "disordered":
                    assert 0 < delay_ms <= 90_000
                case "late":
                    assert 600_000 < delay_ms <= 7_200_000
            assert row.behind_ms <= delay_ms

    def test_rows_come_in_the_order_of_their_arrival(self, rough):
        rows = truth(rough)
        assert [row.index for row in rows] == list(range(3_000))
        assert [row.arrival_time for row in rows] == sorted(row.arrival_time for row in rows)

    def test_late_rows_are_really_behind(self, tmp_path):
        mild = Disorder(disorder=0.2, late=0.05, late_by="20 minutes")
        emit(tmp_path, shop(density=0.5, disorder=mild), rows=1_500)
        rows = truth(tmp_path)
        still_running = [r for r in rows if r.arrival == "late" and ms(r.arrival_time) < START_MS + 2_500_000]
        assert len(still_running) > 25
        assert all(row.behind_ms > 590_000 for row in still_running)
        assert all(row.behind_ms <= 90_000 for row in rows if row.arrival != "late")

    def test_a_copy_has_the_same_bytes_and_comes_later(self, rough):
        text, rows = lines(rough), truth(rough)
        copies = [row for row in rows if row.duplicate_of is not None]
        assert len(copies) > 100
        for copy in copies:
            assert copy.index > copy.duplicate_of
            assert text[copy.index] == text[copy.duplicate_of]
            assert copy.event_id == rows[copy.duplicate_of].event_id


class TestTruth:
    @pytest.mark.parametrize("stream", STREAM_NAMES)
    def test_it_agrees_with_what_was_written(self, tmp_path, stream):
        emit(tmp_path, shop(streams=(stream,), disorder=ROUGH, product_change_every="1 minute"), rows=800)
        columns = FORMATS[stream]
        contents = {path.name: path.read_text().splitlines() for path in (tmp_path / stream).iterdir()}
        rows = truth(tmp_path, stream)
        assert len(rows) == 800 == sum(map(len, contents.values()))
        for row in rows:
            line = contents[row.file][row.row]
            assert is_sound(line, stream) is (row.malformed is None), line
            if row.malformed is None:
                stated = parsed(line)
                assert stated[columns.key] == row.key
                if row.future:
                    assert ms(stated[columns.event_time]) - ms(row.arrival_time) >= 2 * 86_400_000
                else:
                    assert stated[columns.event_time] == row.event_time

    def test_all_kinds_of_malformed_rows_occur_and_are_what_they_say(self, tmp_path):
        emit(tmp_path, shop(disorder=Disorder(malformed=1.0, future=0)), rows=600)
        seen = Counter()
        for line, row in zip(lines(tmp_path), truth(tmp_path), strict=True):
            seen[row.malformed] += 1
            if row.malformed in ("truncated", "not_a_record"):
                with pytest.raises(json.JSONDecodeError):
                    json.loads(line)
            elif row.malformed == "missing_event_time":
                assert "sold_at" not in parsed(line)
            elif row.malformed == "missing_key":
                assert "product_id" not in parsed(line)
            elif row.malformed == "garbage_timestamp":
                with pytest.raises(ValueError, match=r"."):
                    datetime.fromisoformat(parsed(line)["sold_at"])
            else:
                assert str in (type(parsed(line)["quantity"]), type(parsed(line)["unit_price"]))
        assert seen.keys() == set(kinds_for(FORMATS["sales"], "json"))
        assert min(seen.values()) > 50

    def test_malformed_csv_is_as_wrong(self, tmp_path):
        emit(
            tmp_path,
            shop(disorder=Disorder(malformed=0.5, future=0)),
            rows=400,
            format="csv",
            rows_per_file=400,
        )
        header, *rows = list(csv.reader(lines(tmp_path)))
        assert header == list(FORMATS["sales"].columns)
        for cells, row in zip(rows, truth(tmp_path), strict=True):
            match row.malformed:
                case None:
                    assert cells[4] == row.event_time
                    assert Decimal(cells[3]) > 0
                case "truncated" | "not_a_record":
                    assert len(cells) < 5
                case "missing_event_time":
                    assert cells[4] == ""
                case "missing_key":
                    assert cells[1] == ""

    def test_parquet_is_typed_and_only_has_gaps(self, tmp_path):
        emit(tmp_path, shop(disorder=Disorder(malformed=0.3)), rows=400, format="parquet", rows_per_file=400)
        (path,) = (tmp_path / "sales").iterdir()
        table = pq.read_table(path)
        assert [str(field.type) for field in table.schema] == [
            "string",
            "string",
            "int32",
            "decimal128(10, 2)",
            "timestamp[us, tz=UTC]",
        ]
        gaps = Counter(row.malformed for row in truth(tmp_path))
        assert table["sold_at"].null_count == gaps["missing_event_time"] > 0
        assert table["product_id"].null_count == gaps["missing_key"] > 0


class TestShopLife:
    def test_payments_are_those_of_the_visits(self, tmp_path):
        emit(tmp_path, shop(streams=("visits", "payments"), density=0.5, disorder=Disorder.none()), rows=700)
        visits = {row["visit_id"]: row for row in map(parsed, lines(tmp_path, "visits"))}
        payments = list(map(parsed, lines(tmp_path, "payments")))
        assert len(payments) > 100
        for payment in payments:
            visit = visits[payment["visit_id"]]
            assert (visit["guest_id"], visit["paid_at"]) == (payment["guest_id"], payment["paid_at"])
            assert payment["amount"] > 0
        last = payments[-1]["paid_at"]
        due = {key for key, visit in visits.items() if visit["paid_at"] and visit["paid_at"] < last}
        assert due <= {payment["visit_id"] for payment in payments}

    def test_the_steps_of_a_visit_are_in_order_and_end_when_one_is_missing(self, tmp_path):
        emit(tmp_path, shop(streams=("visits",), disorder=Disorder.none()), rows=1_000)
        known = Counter()
        for visit in map(parsed, lines(tmp_path, "visits")):
            steps = [visit[name] for name in ("seated_at", "ordered_at", "served_at", "paid_at")]
            present = [step for step in steps if step is not None]
            assert steps[: len(present)] == present == sorted(present)
            assert (visit["drink"] is None) is (visit["ordered_at"] is None)
            known[len(present)] += 1
        assert set(known) == {1, 2, 3, 4}

    def test_visits_can_be_told_step_by_step(self, tmp_path):
        told = shop(streams=("visits",), visit_updates=True, density=0.5, disorder=Disorder.none())
        emit(tmp_path / "steps", told, rows=1_000)
        emit(tmp_path / "whole", shop(streams=("visits",), density=0.5, disorder=Disorder.none()), rows=1_000)
        whole = {row["visit_id"]: row for row in map(parsed, lines(tmp_path / "whole", "visits"))}
        versions: dict[str, list[dict]] = {}
        for row in map(parsed, lines(tmp_path / "steps", "visits")):
            versions.setdefault(row["visit_id"], []).append(row)
        finished = [rows for rows in versions.values() if rows[-1]["paid_at"]]
        assert len(finished) > 50
        for rows in finished:
            assert len(rows) == 4
            assert rows[0]["ordered_at"] is None
            assert rows[-1] == whole[rows[0]["visit_id"]]

    def test_sales_have_the_price_of_the_moment(self, tmp_path):
        lively = {"streams": ("sales", "products"), "product_change_every": "5 seconds", "unlisted": 0}
        emit(tmp_path, shop(**lively, disorder=Disorder.none()), rows=1_000)
        changes = [
            (r["changed_at"], r["product_id"], r["unit_price"]) for r in map(parsed, lines(tmp_path, "products"))
        ]
        assert len(changes) > 50
        full_price = 0
        for sale in map(parsed, lines(tmp_path)):
            price = [p for at, product, p in changes if product == sale["product_id"] and at <= sale["sold_at"]][-1]
            assert price * Decimal("0.9") - Decimal("0.01") < sale["unit_price"] <= price
            full_price += price == sale["unit_price"]
        assert full_price > 700

    def test_people_click_in_sessions_that_sometimes_end_with_a_purchase(self, tmp_path):
        emit(tmp_path, shop(streams=("clicks",), users=100_000, disorder=Disorder.none()), rows=3_000)
        sessions: dict[str, list[tuple[int, str]]] = {}
        for click in map(parsed, lines(tmp_path, "clicks")):
            sessions.setdefault(click["user_id"], []).append((ms(click["clicked_at"]), click["page"]))
        clicks = [pages for pages in sessions.values() if len(pages) > 1]
        assert max(b[0] - a[0] for pages in clicks for a, b in pairwise(pages)) < 1_800_000
        bought = [[page for _, page in pages] for pages in clicks if pages[-1][1] == "checkout/done"]
        assert 0.02 < len(bought) / len(sessions) < 0.4
        assert all("cart" in pages and "checkout" in pages for pages in bought)


class TestFiles:
    def test_a_second_run_in_the_same_folder_collides_with_nothing(self, tmp_path):
        emit(tmp_path, shop(), rows=300)
        before = {path: path.read_bytes() for path in (tmp_path / "sales").iterdir()}
        emit(tmp_path, shop(), rows=300)
        emit(tmp_path, shop(start=START + timedelta(hours=1)), rows=300)
        after = {path: path.read_bytes() for path in (tmp_path / "sales").iterdir()}
        assert len(after) == 3 * len(before)
        assert before.items() <= after.items()
        assert len({row.run for row in truth(tmp_path)}) == 3
        ids = Counter(row.event_id for row in truth(tmp_path) if row.duplicate_of is None)
        assert set(ids.values()) == {1, 2}  # another start has ids of its own

    def test_nothing_hidden_is_left_behind_and_names_sort_by_arrival(self, tmp_path):
        emit(tmp_path, shop(), rows=1_200, rows_per_file=100)
        names = sorted(path.name for path in (tmp_path / "sales").iterdir())
        assert len(names) == 12
        assert not any(name.startswith(".") for name in names)
        assert list(dict.fromkeys(row.file for row in truth(tmp_path))) == names

    def test_an_object_store_gets_the_same_rows_and_the_truth_in_pieces(self, tmp_path):
        store = MemoryStore()
        for _ in range(2):
            tally = Tally()
            sink = FileSink(
                ObjectFolder(store),
                streams=("sales",),
                stamp="x",
                file_format="json",
                rows_per_file=40,
                tally=tally,
            )
            for row in _arrivals(100):
                sink.add(row)
            sink.flush()
            assert tally.progress(elapsed_s=0, caught_up=False, ended_by=None).rows == 100
        folder = ObjectFolder(store)
        assert sorted(folder.names("sales")) == [f"sales-x-r00{r}-0000000{n}.json" for r in (1, 2) for n in range(3)]
        assert sorted(folder.names("_truth/sales.jsonl")) == [f"0000000{n}.jsonl" for n in range(6)]
        with pytest.raises(BadTarget, match="expected a new name"):
            folder.write("sales/sales-x-r001-00000000.json", b"")

    def test_an_unknown_url_is_refused_before_anything_is_written(self):
        with pytest.raises(BadTarget, match="expected a folder or s3://"):
            open_folder("ftp://somewhere/else")


class TestPace:
    def test_event_time_runs_at_speed_and_each_second_has_a_file(self, tmp_path):
        clock = FakeClock()
        paced = shop(rate=50.0, speed=60.0, disorder=Disorder.none())
        progress = simulate_files(paced, out=str(tmp_path), duration_s=20.0, rows_per_file=10_000, clock=clock)
        assert progress.ended_by == "duration"
        assert 850 < progress.rows < 1_150
        assert progress.files >= 20
        assert START + timedelta(minutes=18) < progress.newest_event_time <= START + timedelta(minutes=20)

    def test_event_time_never_overtakes_the_clock(self, tmp_path):
        clock = FakeClock(START + timedelta(minutes=10))
        paced = shop(rate=10.0, speed=3_600.0, disorder=Disorder.none())
        progress = simulate_files(paced, out=str(tmp_path), duration_s=30.0, clock=clock)
        assert progress.caught_up
        assert progress.newest_event_time <= START + timedelta(minutes=10, seconds=30)

    def test_without_a_start_it_begins_a_day_ago_at_the_hour(self, tmp_path):
        clock = FakeClock(START + timedelta(hours=30, minutes=20))
        emit(tmp_path, shop(start=None, disorder=Disorder.none()), rows=10, clock=clock)
        assert parsed(lines(tmp_path)[0])["sold_at"].startswith("2024-05-01T06:00:0")

    def test_stop_flushes_what_has_arrived(self, tmp_path):
        stop, seen = threading.Event(), []
        clock = FakeClock(on_wait=lambda waits: stop.set() if waits == 3 else None)
        paced = shop(rate=200.0, disorder=ROUGH)
        progress = simulate_files(paced, out=str(tmp_path), stop=stop, clock=clock, on_progress=seen.append)
        assert progress.ended_by == "stop"
        assert progress == seen[-1]
        assert progress.rows == len(lines(tmp_path)) == len(truth(tmp_path)) > 0

    def test_a_stop_before_the_start_writes_nothing(self, tmp_path):
        stop = threading.Event()
        stop.set()
        assert simulate_files(shop(), out=str(tmp_path), stop=stop).rows == 0
        assert not list(tmp_path.iterdir())

    def test_a_real_clock_works_too(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "FILE_TICK_S", 0.02)
        progress = simulate_files(shop(rate=500.0), out=str(tmp_path), rows=20)
        assert progress.ended_by == "rows"
        assert progress.rows == len(lines(tmp_path)) == 20


class FakeProducer:
    """Acknowledges every message but those of one key."""

    def __init__(self, refused_key: str = "") -> None:
        self.messages, self._queue, self._refused = [], [], refused_key.encode()

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return len(self.messages)

    def produce(self, topic, **options):
        self._queue.append((topic, options))

    def flush(self, timeout):
        for topic, options in self._queue:
            options["on_delivery"]("broker is full" if options["key"] == self._refused else None, self)
            self.messages.append((topic, options["key"], options["value"]))
        self._queue.clear()
        return 0


class TestKafka:
    def test_messages_are_keyed_by_the_entity_and_the_truth_knows_their_offset(self, tmp_path):
        producer, rows = FakeProducer(), _arrivals(90)
        sink = KafkaSink(producer, topic_prefix="shop.", run="r", truth=tmp_path, batch_rows=40, tally=Tally())
        for row in rows:
            sink.add(row)
        sink.flush()
        assert [topic for topic, *_ in producer.messages] == ["shop.sales"] * 90
        assert [row.row for row in read_truth(tmp_path, "sales")] == list(range(90))
        for (_, key, _), row in zip(producer.messages, read_truth(tmp_path, "sales"), strict=True):
            assert key == row.key.encode()

    def test_a_refused_message_is_raised_and_not_in_the_truth(self, tmp_path):
        rows = _arrivals(10)
        producer = FakeProducer(refused_key=rows[4].event.key)
        sink = KafkaSink(producer, topic_prefix="", run="r", truth=tmp_path, batch_rows=100, tally=Tally())
        for row in rows:
            sink.add(row)
        with pytest.raises(DeliveryFailed, match="broker is full"):
            sink.flush()
        assert not (tmp_path / "sales.jsonl").exists()


class TestBulk:
    def test_rows_shares_and_order(self, tmp_path):
        progress = bulk_sales(out=str(tmp_path), rows=3_000, rows_per_file=1_000, extra_columns=45, start=START)
        table = pq.read_table(tmp_path / "sales")
        facts = pq.read_table(tmp_path / "_truth" / "sales")
        assert (progress.rows, progress.files, table.num_rows, table.num_columns) == (3_000, 3, 3_000, 50)
        assert str(table.schema.field("unit_price").type) == "decimal128(10, 2)"
        assert len(set(table["sale_id"].to_pylist())) == 3_000
        arrival_times = facts["arrival_time"].cast("int64").to_pylist()
        assert arrival_times == sorted(arrival_times)
        assert facts["sale_id"].equals(table["sale_id"])
        assert facts["event_time"].cast("int64").equals(table["sold_at"].cast("int64"))
        counts = Counter(facts["arrival"].to_pylist())
        assert abs(counts["late"] - 15) < 18
        assert abs(counts["disordered"] - 597) < 99

    def test_the_cut_of_the_files_does_not_change_the_rows(self, tmp_path):
        for folder, rows_per_file in (("a", 700), ("b", 5_000)):
            bulk_sales(out=str(tmp_path / folder), rows=5_000, rows_per_file=rows_per_file, start=START)
        assert pq.read_table(tmp_path / "a" / "sales").equals(pq.read_table(tmp_path / "b" / "sales"))

    def test_faults_that_it_does_not_have_are_refused(self, tmp_path):
        with pytest.raises(BadTarget, match="use simulate_files"):
            bulk_sales(out=str(tmp_path), rows=1, disorder=Disorder())


def _arrivals(rows: int):
    a_shop = shop(disorder=ROUGH)
    return list(
        arrivals(
            timeline(a_shop, START_MS),
            ROUGH,
            dice={"sales": a_shop.dice("sales/arrival")},
            kinds={"sales": kinds_for(FORMATS["sales"], "json")},
            rows=rows,
        )
    )
