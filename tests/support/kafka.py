"""A Kafka broker (KRaft, one node) for the length of a ``with`` block: an open one, or that of compose with SASL."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from infra.setup_jars import find_java
from spark_jobs.console.laptop.ports import free_port
from tests.support.process import REPOSITORY, ServiceError, running

_ANSWER_S = 15.0


@dataclass(frozen=True)
class Kafka:
    """A running broker.

    Attributes:
        bootstrap_servers: Its address, ``127.0.0.1:port``.
        credentials: Options of librdkafka for its administrator; none where it asks for none.
        clients: The address of its listener for compose's other services; empty where there is one listener.
    """

    bootstrap_servers: str
    credentials: Mapping[str, str] = field(default_factory=dict)
    clients: str = ""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic and wait for it."""
        admin = _client(self.bootstrap_servers, self.credentials)  # held by name: a collected client drops its requests
        _await(admin.create_topics([NewTopic(name, partitions, 1)]))

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic.

        Args:
            name: The topic.
            total: The number of partitions that it then has.
        """
        admin = _client(self.bootstrap_servers, self.credentials)
        _await(admin.create_partitions([NewPartitions(name, total)]))


def kafka_jars() -> Path | None:
    """Return the folder of the broker's jars, or none where they were not fetched."""
    folder = REPOSITORY / ".cache/kafka"
    return folder if any(folder.glob("kafka_2.13-*.jar")) else None


@contextmanager
def start_kafka(root: Path) -> Iterator[Kafka]:
    """Run a broker on a free loopback port; topics are made by name only.

    Args:
        root: An empty or fresh folder for its data, its settings and its log.

    Raises:
        ServiceError: If its jars were not fetched, or it does not start.
    """
    root.mkdir(parents=True, exist_ok=True)
    broker, controller = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = root / "server.properties"
    settings.write_text(_settings(root / "data", broker, controller), encoding="utf-8")
    java = _java()
    prepare = ["kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(settings)]
    done = subprocess.run([*java, *prepare], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"kafka: its data folder could not be prepared.\n{done.stdout}{done.stderr}")
    kafka = Kafka(broker)
    command = [*java, "kafka.Kafka", str(settings)]
    with running("kafka", command, log=root / "kafka.log", is_ready=lambda: _answers(kafka)):
        yield kafka


@contextmanager
def start_sasl_kafka(
    root: Path, environment: Mapping[str, str], *, folder: Path = REPOSITORY / "infra/kafka"
) -> Iterator[Kafka]:
    """Run the broker of compose on free loopback ports, by the script that compose runs.

    Args:
        root: An empty or fresh folder for its data and its log.
        environment: The service's variables; the data folder and the addresses are replaced.
        folder: Its script and its settings.

    Yields:
        The broker by its listener for the machine itself.

    Raises:
        ServiceError: If its jars were not fetched, or it does not start.
    """
    home = root / "home/bin"
    home.mkdir(parents=True, exist_ok=True)
    # The image's scripts only call these classes.
    for script, main in (("kafka-storage.sh", "kafka.tools.StorageTool"), ("kafka-server-start.sh", "kafka.Kafka")):
        (home / script).write_text(f'#!/bin/sh\nexec {" ".join(map(_shell, _java()))} {main} "$@"\n')
        (home / script).chmod(0o755)
    clients, host, controller = (f"127.0.0.1:{free_port()}" for _ in range(3))
    listeners = f"CLIENTS://{clients},HOST://{host}"
    places = {
        "KAFKA_HOME": str(root / "home"),
        "KAFKA_DATA_FOLDER": str(root / "data"),
        "KAFKA_CONTROLLER": controller,
        "KAFKA_LISTENERS": f"{listeners},CONTROLLER://{controller}",
        "KAFKA_ADVERTISED_LISTENERS": listeners,
    }
    credentials = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": environment["KAFKA_ADMIN_PASSWORD"],
    }
    with running(
        "kafka",
        [str(folder / "start.sh")],
        log=root / "kafka.log",
        is_ready=lambda: _answers(Kafka(clients, credentials)),
        environment={**os.environ, **environment, **places},
    ):
        yield Kafka(host, credentials, clients)


def _shell(word: str) -> str:
    return f"'{word}'"


def _java() -> list[str]:
    jars = kafka_jars()
    if jars is None:
        again = "Run `python -m infra.setup_jars --kafka`."
        raise ServiceError(f"kafka: expected its jars in .cache/kafka, found none. {again}")
    return [str(find_java()), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]


def _answers(kafka: Kafka) -> bool:
    """Also for consumer groups, whose topic it makes and loads when one is asked for."""
    client = _client(kafka.bootstrap_servers, kafka.credentials)
    try:
        if not client.list_topics(timeout=1).brokers:
            return False
        # To ask for its offsets too early ends the process: librdkafka takes the refusal for one of a consumer's group.
        _await(client.describe_consumer_groups(["any"]))
    except (KafkaException, TimeoutError):
        return False
    return True


def _client(bootstrap_servers: str, credentials: Mapping[str, str]) -> AdminClient:
    # A broker that still starts refuses connections; the client would print each refusal.
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0, **credentials})


def _await(answers: dict[str, Future[Any]]) -> None:
    for answer in answers.values():
        answer.result(timeout=_ANSWER_S)


def _settings(data: Path, broker: str, controller: str) -> str:
    return "\n".join(
        [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@{controller}",
            f"listeners=PLAINTEXT://{broker},CONTROLLER://{controller}",
            f"advertised.listeners=PLAINTEXT://{broker}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={data}",
            "auto.create.topics.enable=false",
            # One node: the defaults of the internal topics ask for three.
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=1",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
            "group.initial.rebalance.delay.ms=0\n",
        ]
    )
