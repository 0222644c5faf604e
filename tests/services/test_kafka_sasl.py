"""A broker that asks who comes: the simulator and an ingest show credentials from the environment, and no one else
learns them."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from rich.console import Console

from infra.kafka import setup_users
from infra.setup_jars import find_java
from spark_jobs.console.simulating import simulate_shop
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.sources.kafka import messages, security_options
from spark_jobs.job.lag import LagMeter
from spark_jobs.job.lag.kafka import KafkaLag
from spark_jobs.lake import Lake
from spark_jobs.lake.inputs.kafka import KafkaSettingsError, check_credentials, client_options, kafka_settings
from spark_jobs.lake.settings import Settings
from spark_jobs.pipelines import registry
from spark_jobs.spec import Ingest, Kafka
from tests.support import lakes
from tests.support.kafka import Kafka as Broker
from tests.support.kafka import kafka_jars, start_sasl_kafka
from tests.support.process import REPOSITORY, leave_out

ADMIN_PASSWORD = "4d1f-the-administrator"
STREAMS_PASSWORD = "str$eams: \"quoted\", 'single', back\\slash; and {braces}"
SIMULATOR_PASSWORD = "sim-9c2e"
ROWS = 300
ANSWER_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """A broker whose listener for the machine itself has TLS, and a file with the authority of its certificate."""
    if kafka_jars() is None:
        leave_out("no jars of Kafka: `make setup-tests` fetches them")
    root = tmp_path_factory.mktemp("kafka")
    folder = with_tls(root)
    with start_sasl_kafka(root / "broker", {"KAFKA_ADMIN_PASSWORD": ADMIN_PASSWORD}, folder=folder) as found:
        yield found, root / "ca.pem"


@pytest.fixture(scope="module")
def broker(secured: tuple[Broker, Path]) -> Broker:
    """The same by its listener without TLS, with its users."""
    broker = replace(secured[0], bootstrap_servers=secured[0].clients)
    passwords = {"KAFKA_STREAMS_PASSWORD": STREAMS_PASSWORD, "KAFKA_SIMULATOR_PASSWORD": SIMULATOR_PASSWORD}
    with pytest.MonkeyPatch.context() as monkeypatch:
        become(monkeypatch, broker, "admin", ADMIN_PASSWORD)
        for _ in range(2):  # at every start: the second time it finds all in place
            setup_users.setup_users(
                {"TIDEMARK_KAFKA": broker.bootstrap_servers, "KAFKA_TOPICS": "sales, clicks", **passwords}
            )
    return broker


def become(monkeypatch: pytest.MonkeyPatch, broker: Broker, user: str, password: str) -> None:
    monkeypatch.setenv("TIDEMARK_KAFKA", broker.bootstrap_servers)
    monkeypatch.setenv("TIDEMARK_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("TIDEMARK_KAFKA_USERNAME", user)
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD", password)


def simulate(broker: Broker) -> None:
    simulate_shop(
        Console(file=StringIO()),
        to=f"kafka://{broker.bootstrap_servers}/",
        shop={"streams": ("sales",), "rate": None},
        disorder={"malformed": 0.0, "future": 0.0},
        rows=ROWS,
        seconds=None,
        rows_per_file=ROWS,
        file_format="json",
        stop=threading.Event(),
    )


def an_ingest() -> Ingest:
    sales = registry()["ingest_sales"]
    assert isinstance(sales, Ingest)
    return sales.model_copy(update={"source": Kafka("sales")})


def files_with(text: str, root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_an_ingest_reads_with_its_own_credentials_what_the_simulator_wrote(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    become(monkeypatch, broker, "simulator", SIMULATOR_PASSWORD)
    simulate(broker)

    become(monkeypatch, broker, "streams", STREAMS_PASSWORD)
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    for outcome in Driver(spark, lake, [an_ingest()]).run_until_caught_up(close=False).values():
        assert outcome.error is None

    assert len(lakes.rows(lake, "bronze.sales")) == ROWS
    said = "".join(capfd.readouterr())
    for marker in ("str$eams", "back\\slash", SIMULATOR_PASSWORD):
        assert files_with(marker, tmp_path) == []
        assert marker not in said
    assert "str$eams" not in messages(spark, Kafka("sales"))._jdf.queryExecution().toString()


def test_a_wrong_password_is_told_without_it_and_with_what_to_set(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, broker, "streams", "the-wrong-one")

    outcome = Driver(spark, Lake(str(tmp_path / "lake")).ensure_exists(), [an_ingest()]).run_until_caught_up(
        close=False
    )

    error = outcome["ingest_sales"].error
    assert isinstance(error, KafkaSettingsError)
    assert "TIDEMARK_KAFKA_USERNAME and TIDEMARK_KAFKA_PASSWORD" in str(error)
    assert "user `streams`" in str(error)
    assert "the-wrong-one" not in str(error)
    with pytest.raises(KafkaSettingsError, match="refuses user `streams`"):
        simulate(broker)


def test_a_permission_that_the_broker_does_not_act_on_is_seen(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, broker, "admin", ADMIN_PASSWORD)
    admin = AdminClient(client_options(broker.bootstrap_servers))
    look_once = setup_users._not_in_effect.__wrapped__
    assert look_once(admin, setup_users.permissions(["sales", "clicks"])) == set()
    (missing,) = look_once(admin, setup_users.permissions(["sales", "visits"]))
    assert (missing.principal, missing.name) == ("User:simulator", "visits")


def test_each_user_may_do_its_own_work_and_nothing_else(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, broker, "simulator", SIMULATOR_PASSWORD)
    assert send("clicks") is None
    assert send("payments") == "TOPIC_AUTHORIZATION_FAILED"
    # Both the topic and the group are closed to it; the broker may tell of either first.
    assert str(read("clicks")).endswith("_AUTHORIZATION_FAILED")
    assert commit("tidemark.sales") == "GROUP_AUTHORIZATION_FAILED"

    become(monkeypatch, broker, "streams", STREAMS_PASSWORD)
    assert read("clicks") is None
    assert send("clicks") == "TOPIC_AUTHORIZATION_FAILED"
    assert commit("tidemark.sales") is None
    assert commit("somebody-else") == "GROUP_AUTHORIZATION_FAILED"


def test_who_may_not_tell_kafkas_tools_of_the_lag_knows_it_all_the_same(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    become(monkeypatch, broker, "simulator", SIMULATOR_PASSWORD)
    assert send("clicks") is None
    become(monkeypatch, broker, "streams", STREAMS_PASSWORD)
    definition = an_ingest().model_copy(update={"source": Kafka("clicks")})
    meter = LagMeter(Lake(str(tmp_path / "lake")).ensure_exists(), definition, "_checkpoints/ingest_sales/epoch-1")
    monkeypatch.setattr(KafkaLag, "_group", "somebody-else")
    begin = {str(partition): 0 for partition in range(setup_users.PARTITIONS)}
    lag = meter.measure({"KafkaV2[Subscribe[clicks]]": json.dumps({"clicks": begin})})
    meter.close()
    assert lag is not None
    assert lag.rows > 0
    assert lag.oldest is not None
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_over_tls_both_clients_trust_the_authority_that_the_settings_name(
    spark: SparkSession, secured: tuple[Broker, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, authority = secured
    become(monkeypatch, broker, "admin", ADMIN_PASSWORD)
    monkeypatch.setenv("TIDEMARK_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    with pytest.raises(KafkaSettingsError, match="certificate verify failed"):
        check_credentials(broker.bootstrap_servers)

    monkeypatch.setenv("TIDEMARK_KAFKA_SSL_CA_LOCATION", str(authority))
    check_credentials(broker.bootstrap_servers)
    admin = AdminClient(options())
    for answer in admin.create_topics([NewTopic("secured", 1, 1)]).values():
        answer.result(timeout=ANSWER_WITHIN_S)
    assert send("secured") is None
    reader = spark.read.format("kafka").options(**security_options(kafka_settings()))
    places = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "secured"}
    assert reader.options(**places).load().count() == 1


def with_tls(root: Path) -> Path:
    """The broker's folder, with a certificate of its own at the listener for the machine itself; `ca.pem` beside it."""
    folder = root / "kafka"
    shutil.copytree(REPOSITORY / "infra/kafka", folder)
    store = ["-keystore", str(root / "broker.p12"), "-storepass", "of-no-worth", "-alias", "broker"]
    keytool = str(find_java().resolve().with_name("keytool"))
    names = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1"]
    subprocess.run([keytool, "-genkeypair", "-keyalg", "EC", *store, *names], check=True, capture_output=True)
    export = [keytool, "-exportcert", "-rfc", "-file", str(root / "ca.pem"), *store]
    subprocess.run(export, check=True, capture_output=True)
    settings = folder / "server.properties"
    text = settings.read_text().replace("HOST:SASL_PLAINTEXT", "HOST:SASL_SSL")
    added = [
        f"listener.name.host.ssl.keystore.location={root / 'broker.p12'}",
        "listener.name.host.ssl.keystore.password=of-no-worth",
        "listener.name.host.ssl.keystore.type=PKCS12",
    ]
    settings.write_text("\n".join([text, *added, ""]))
    return folder


def options() -> dict[str, Any]:
    return {**client_options(Settings().kafka), "log_level": 0}


def send(topic: str) -> str | None:
    """The name of the error that a message meets; none where it arrives."""
    errors: list[KafkaError | None] = []
    producer = Producer(options())
    producer.produce(topic, value=b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(ANSWER_WITHIN_S)
    return errors[0].name() if errors[0] else None


def read(topic: str) -> str | None:
    """The name of the error that a reader meets; none where it gets a message."""
    consumer = Consumer({**options(), "group.id": "spark-kafka-source-x"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(setup_users.PARTITIONS)])
    message = consumer.poll(ANSWER_WITHIN_S)
    assert message is not None
    error = message.error()
    return error.name() if error else None


def commit(group: str) -> str | None:
    """The name of the error that one meets who leaves an offset for Kafka's own lag tools; none where it is kept."""
    place = ConsumerGroupTopicPartitions(group, [TopicPartition("sales", 0, 1)])
    admin = AdminClient(options())  # held by name: a collected client drops its requests
    try:
        for answer in admin.alter_consumer_group_offsets([place]).values():
            answer.result(timeout=ANSWER_WITHIN_S)
    except KafkaException as error:
        return str(error.args[0].name())
    return None
