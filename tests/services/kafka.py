"""A Kafka broker (KRaft, one node) for the length of a ``with`` block."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from infra.setup_jars import find_java
from tests.services.process import REPOSITORY, ServiceError, free_port, running

_ANSWER_S = 15.0


@dataclass(frozen=True)
class Kafka:
    """A running broker.

    Attributes:
        bootstrap_servers: Its address, ``127.0.0.1:port``.
    """

    bootstrap_servers: str

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic and wait for it."""
        admin = _client(self.bootstrap_servers)  # held by name: a collected client drops its requests
        _await(admin.create_topics([NewTopic(name, partitions, 1)]))

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic.

        Args:
            name: The topic.
            total: The number of partitions that it then has.
        """
        admin = _client(self.bootstrap_servers)
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
    jars = kafka_jars()
    if jars is None:
        again = "Run `python -m infra.setup_jars --kafka`."
        raise ServiceError(f"kafka: expected its jars in .cache/kafka, found none. {again}")
    root.mkdir(parents=True, exist_ok=True)
    broker, controller = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = root / "server.properties"
    settings.write_text(_settings(root / "data", broker, controller), encoding="utf-8")
    java = [str(find_java()), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    prepare = ["kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(settings)]
    done = subprocess.run([*java, *prepare], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"kafka: its data folder could not be prepared.\n{done.stdout}{done.stderr}")
    admin = _client(broker)

    def is_ready() -> bool:
        try:
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    with running("kafka", [*java, "kafka.Kafka", str(settings)], log=root / "kafka.log", is_ready=is_ready):
        yield Kafka(broker)


def _client(bootstrap_servers: str) -> AdminClient:
    # A broker that still starts refuses connections; the client would print each refusal.
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


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
