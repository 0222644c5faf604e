"""Ingest from a real Kafka: every message is in bronze or in the quarantine, at its partition and offset."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.console.laptop.ports import free_port
from spark_jobs.control.desired import contracts
from spark_jobs.control.desired.contracts import differences
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.sources.kafka import TopicReplacedError
from spark_jobs.job.lag import LagMeter
from spark_jobs.job.lag import kafka as kafka_lag
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.inputs import kafka
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import RestorePlan, plan_restore
from spark_jobs.operations.restore.sources import RestoreRefusedError
from spark_jobs.pipelines import registry
from spark_jobs.simulator import Disorder, Shop, TruthRow, read_truth, simulate_kafka
from spark_jobs.spec import Ingest, Kafka
from tests.support import lakes
from tests.support.kafka import Kafka as Broker
from tests.support.kafka import kafka_jars, start_kafka
from tests.support.process import leave_out
from tests.support.waiting import PATIENCE_S, await_that

TOPIC = "shop.sales"
REASONS = {
    "truncated": "unparseable",
    "wrong_type": "unparseable",
    "not_a_record": "unparseable",
    "garbage_timestamp": "unparseable",
    "missing_event_time": "not_null(sold_at)",
    "missing_key": "not_null(product_id)",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if kafka_jars() is None:
        leave_out("no jars of Kafka: `make setup-tests` fetches them")
    with start_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def an_ingest(broker: Broker) -> Ingest:
    sales = registry()["ingest_sales"]
    assert isinstance(sales, Ingest)
    source = Kafka(TOPIC, bootstrap_servers=broker.bootstrap_servers, max_offsets_per_trigger=200)
    return sales.model_copy(update={"source": source})


def send(broker: Broker, partition: int, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(TOPIC, value=value, key=b"any", partition=partition)
    assert producer.flush(30) == 0


def a_sale(number: int) -> bytes:
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    text = f'"sale_id": "by-hand-{number}", "product_id": "p", "quantity": 1, "unit_price": 1.5'
    return f'{{{text}, "sold_at": "{start.isoformat()}"}}'.encode()


def by_place(rows: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    found = {(row["_source"]["partition"], row["_source"]["position"]): row for row in rows if row["_source"]}
    assert len(found) == sum(row["_source"] is not None for row in rows), "each message once"
    assert {row["_source"]["name"] for row in found.values()} <= {TOPIC}
    return found


def test_newest_messages_are_held_against_the_columns_before_a_deploy(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("drifted", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    changed = {"sale_id": "s", "product_id": "p", "quantity": "two", "sold_at": "2026-01-01T00:00:00Z", "discount": 5}
    for partition in (0, 1, 1):
        producer.produce("drifted", value=json.dumps(changed).encode(), partition=partition)
    producer.produce("drifted", value=b"no JSON", partition=0)
    producer.produce("drifted", value=None, partition=0)
    assert producer.flush(30) == 0
    lake = Lake(str(tmp_path)).ensure_exists()
    drifted = an_ingest(broker).model_copy(
        update={"source": Kafka("drifted, absent", bootstrap_servers=broker.bootstrap_servers)}
    )
    with monkeypatch.context() as patient:
        patient.setattr(contracts, "_ANSWER_S", PATIENCE_S)
        found = differences(lake, drifted)
    assert {(each.kind, each.column, each.what) for each in found} == {
        ("new", "discount", "3 of 3 rows have it; it is dropped"),
        ("missing", "unit_price", "none of 3 rows has it"),
        ("retyped", "quantity", "3 of 3 rows have a value that is no INT"),
    }
    unreachable = Kafka("drifted", bootstrap_servers=f"127.0.0.1:{free_port()}")
    assert differences(lake, drifted.model_copy(update={"source": unreachable})) == ()


def caught_up(spark: SparkSession, lake: Lake, definition: Ingest) -> None:
    for outcome in Driver(spark, lake, [definition]).run_until_caught_up(close=False).values():
        if outcome.error is not None:
            raise outcome.error


def assert_books_balance(lake: Lake, definition: Ingest, messages: int) -> None:
    epoch = current_epoch(lake, definition.name)
    assert epoch is not None
    ledger = lakes.ledger(lake, definition)
    assert [text for holds, text in audit.checks(lake, definition, epoch.number, ledger) if not holds] == []
    assert sum(row["read"] for _, row in ledger) == messages


def reason_of(row: TruthRow) -> str | None:
    return REASONS[row.malformed] if row.malformed else "future" if row.future else None


def test_every_message_is_accounted_for_and_added_partitions_are_read(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    lake, definition = Lake(str(tmp_path / "lake")).ensure_exists(), an_ingest(broker)
    broker.create_topic(TOPIC, partitions=2)
    shop = Shop(
        seed=7,
        streams=("sales",),
        start=datetime.now(UTC) - timedelta(hours=8),
        rate=None,
        density=500 / (6 * 3600),
        disorder=Disorder(late=0.1, malformed=0.1, duplicates=0.05, future=0.05),
    )
    simulate_kafka(
        shop, bootstrap_servers=broker.bootstrap_servers, topic_prefix="shop.", truth=tmp_path / "truth", rows=500
    )

    caught_up(spark, lake, definition)

    truth = {(row.partition, row.row): row for row in read_truth(tmp_path / "truth", "sales")}
    assert len(truth) == 500
    kept, set_aside = by_place(lakes.rows(lake, "bronze.sales")), by_place(lakes.rows(lake, "bronze.sales__quarantine"))
    assert {spot: row["_event_id"] for spot, row in kept.items()} == {
        spot: row.event_id for spot, row in truth.items() if reason_of(row) is None
    }
    assert {spot: row["reason"] for spot, row in set_aside.items()} == {
        spot: reason for spot, row in truth.items() if (reason := reason_of(row)) is not None
    }
    assert {row["reason"] for row in set_aside.values()} == {*REASONS.values(), "future"}
    assert all(lakes.ms(row["sold_at"]) == _ms(truth[spot].event_time) for spot, row in kept.items())
    assert any(row.arrival == "late" for row in truth.values())
    assert len(lakes.ledger(lake, definition)) == 3
    assert_books_balance(lake, definition, 500)

    # Messages that are no text, or none at all.
    ends = {partition: 1 + max(offset for p, offset in truth if p == partition) for partition in (0, 1)}
    odd = (None, b"", b"\xff\xfe\x00{", a_sale(0), a_sale(1) + a_sale(2))
    send(broker, 0, *odd)
    stop, ended = threading.Event(), []
    driver = Driver(spark, lake, [definition])
    running = threading.Thread(target=lambda: ended.append(driver.run_continuously(stop)), daemon=True)
    running.start()

    def has_come(*numbers: int) -> Callable[[], bool]:
        ids = {f"by-hand-{number}" for number in numbers}
        return lambda: ids <= {row["_event_id"] for row in lakes.rows(lake, "bronze.sales")}

    try:
        send(broker, 1, a_sale(10))
        await_that(has_come(10), "the message that shows that the query runs")
        broker.add_partitions(TOPIC, 4)
        send(broker, 2, a_sale(20), a_sale(21))
        send(broker, 3, a_sale(30))
        await_that(has_come(20, 21, 30), "the messages of the added partitions")
    finally:
        stop.set()
        running.join(PATIENCE_S)
    assert [outcome.error for outcomes in ended for outcome in outcomes.values()] == [None]
    set_aside = by_place(lakes.rows(lake, "bronze.sales__quarantine"))
    found = [set_aside.get((0, ends[0] + number)) for number in range(len(odd))]
    told = [(row["reason"], row["raw"]) if row else None for row in found]
    assert told == [
        ("unparseable", None),
        ("unparseable", ""),
        ("not UTF-8", "\ufffd\ufffd\0{"),
        None,
        ("unparseable", (a_sale(1) + a_sale(2)).decode()),
    ]
    kept = by_place(lakes.rows(lake, "bronze.sales"))
    places = {row["_event_id"]: spot for spot, row in kept.items() if row["_event_id"].startswith("by-hand")}
    assert places == {
        "by-hand-0": (0, ends[0] + 3),
        "by-hand-10": (1, ends[1]),
        "by-hand-20": (2, 0),
        "by-hand-21": (2, 1),
        "by-hand-30": (3, 0),
    }
    assert_books_balance(lake, definition, 509)
    numbers = [row["_ingest_seq"] for row in kept.values()]
    assert len(set(numbers)) == len(numbers)


def _ms(text: str) -> int:
    return lakes.ms(datetime.fromisoformat(text.replace("Z", "+00:00")))


def test_kafkas_own_tools_see_how_far_a_deployed_ingest_is(
    broker: Broker, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_lag, "_ANSWER_S", PATIENCE_S)
    topic = "lag.sales"
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    sent_at = 1_767_225_600
    for number in range(7):
        producer.produce(topic, value=a_sale(number), partition=0, timestamp=(sent_at + number) * 1000)
    assert producer.flush(30) == 0
    ingest = an_ingest(broker).model_copy(update={"source": Kafka(topic, bootstrap_servers=broker.bootstrap_servers)})
    meter = LagMeter(lake, ingest, "_checkpoints/ingest_sales/epoch-1")

    lag = meter.measure({"KafkaV2[Subscribe[lag.sales]]": json.dumps({topic: {"0": 5}})})
    meter.close()

    assert lag is not None
    assert lag.rows == 2
    assert lag.oldest == datetime.fromtimestamp(sent_at + 5, UTC)
    asked = ConsumerGroupTopicPartitions("tidemark-ingest_sales", [TopicPartition(topic, 0)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (group,) = [answer.result(30) for answer in admin.list_consumer_group_offsets([asked]).values()]
    assert [place.offset for place in group.topic_partitions] == [5]


def test_what_a_transaction_took_back_is_no_event(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    broker.create_topic("shop.transactions")
    source = Kafka("shop.transactions", bootstrap_servers=broker.bootstrap_servers)
    definition = an_ingest(broker).model_copy(update={"source": source})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "till"})
    producer.init_transactions(30)
    for number, taken_back in enumerate((False, True, False)):
        producer.begin_transaction()
        producer.produce("shop.transactions", value=a_sale(number))
        producer.flush(30)
        producer.abort_transaction(30) if taken_back else producer.commit_transaction(30)
    # That a transaction is over is written behind its messages, by the broker and afterwards.
    admin, place = AdminClient({"bootstrap.servers": broker.bootstrap_servers}), TopicPartition("shop.transactions", 0)

    def end() -> int:
        asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        return asked[place].result(30).offset

    await_that(lambda: end() == 6, "the end of three transactions")

    caught_up(spark, lake, definition)
    assert sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales")) == ["by-hand-0", "by-hand-2"]
    assert_books_balance(lake, definition, 2)
    meter = LagMeter(lake, definition, "")
    lag = meter.measure(lakes.ledger(lake, definition)[-1][1].sources)
    meter.close()
    assert lag is not None
    assert lag.rows == 0


def test_a_topic_that_was_made_again_under_its_name_is_not_read_on(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    lake, topic = Lake(str(tmp_path / "lake")).ensure_exists(), "shop.again"
    definition = an_ingest(broker).model_copy(
        update={"source": Kafka(topic, bootstrap_servers=broker.bootstrap_servers)}
    )

    def send_sales(*numbers: int) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in numbers:
            producer.produce(topic, value=a_sale(number), partition=0)
        assert producer.flush(30) == 0

    broker.create_topic(topic)
    send_sales(1, 2)
    caught_up(spark, lake, definition)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    await_that(lambda: topic not in admin.list_topics(timeout=10).topics, "the end of the topic")
    broker.create_topic(topic)
    # More of them than the old one had: the offsets alone tell nothing.
    send_sales(3, 4, 5)

    with pytest.raises(TopicReplacedError, match=r"shop\.again was deleted and made again.*reset ingest_sales --keep"):
        caught_up(spark, lake, definition)
    assert sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales")) == ["by-hand-1", "by-hand-2"]

    reset(lake, definition, empty_tables=False)
    caught_up(spark, lake, definition)
    kept = sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales"))
    assert kept == [f"by-hand-{number}" for number in range(1, 6)]


def test_an_ingest_goes_back_only_where_kafka_has_what_it_reads_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, topic = Lake(str(tmp_path / "lake")).ensure_exists(), "shop.kept"
    monkeypatch.setenv("TIDEMARK_KAFKA", broker.bootstrap_servers)
    definition = an_ingest(broker).model_copy(update={"source": Kafka(topic)})
    broker.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for batch in range(3):
        for number in range(2):
            producer.produce(topic, value=a_sale(10 * batch + number), partition=0)
        if batch == 2:
            producer.produce(topic, value=a_sale(99), partition=1)
        assert producer.flush(30) == 0
        caught_up(spark, lake, definition)
    before = sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales"))
    shown = CliRunner().invoke(app, ["checkpoints", "show", definition.name, "--lake", lake.uri])
    assert "Kafka, next message: shop.kept[0] 6, shop.kept[1] 1" in " ".join(shown.output.split())

    def plan(batch: int) -> RestorePlan:
        return plan_restore(lake, definition, to=None, to_batch=batch, by="tests")

    silent = r"not known\. Kafka at 127\.0\.0\.1:.*topic shop\.kept.*again when it"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(kafka, "_ANSWER_WITHIN_S", 1.0)
        elsewhere.setenv("TIDEMARK_KAFKA", f"127.0.0.1:{free_port()}")
        with pytest.raises(RestoreRefusedError, match=silent):
            plan(0)
    assert plan(2).read_again == ("ingest_sales had read no more of topic shop.kept",)
    approved = plan(0)
    (told,) = approved.read_again
    assert told == "ingest_sales reads offsets shop.kept[0] 2 to 5, shop.kept[1] 0 to 0 again; Kafka still has them"

    # The topic forgets: by its retention, or as here because somebody says so.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(30)
    gone = (
        r"since batch 0 of epoch 1 .*: topic shop\.kept, partition 0: offset 2 is needed, the earliest held is 4\. "
        r"Nothing was changed\. The farthest back that it can go is: tidemark restore ingest_sales --to-batch 1"
    )
    with pytest.raises(RestoreRefusedError, match=gone):
        plan(0)
    with pytest.raises(RestoreRefusedError, match=gone):
        carry_out(lake, approved, print)
    assert sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales")) == before

    carry_out(lake, plan(1), print)
    assert len(lakes.rows(lake, "bronze.sales")) == 4
    caught_up(spark, lake, definition)
    assert sorted(row["sale_id"] for row in lakes.rows(lake, "bronze.sales")) == before
    assert_books_balance(lake, definition, 7)

    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[compact])
    admin.incremental_alter_configs([asked])[asked].result(30)
    with pytest.raises(RestoreRefusedError, match=r"shop\.kept is compacted"):
        plan(1)
