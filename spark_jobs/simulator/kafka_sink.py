"""Streams as Kafka topics; the truth goes to a local folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from spark_jobs.simulator.arrivals import Arrival
from spark_jobs.simulator.encode import json_line
from spark_jobs.simulator.errors import DeliveryFailed
from spark_jobs.simulator.folders import LocalFolder
from spark_jobs.simulator.progress import Tally
from spark_jobs.simulator.streams import StreamName
from spark_jobs.simulator.truth import truth_line, truth_lines

FLUSH_TIMEOUT_S = 60.0


class Message(Protocol):
    """What a delivery report says of a message."""

    def partition(self) -> int | None:
        """Where it was stored."""

    def offset(self) -> int | None:
        """The offset of the message in its partition."""


class Producer(Protocol):
    """The part of `confluent_kafka.Producer` that is used."""

    def produce(self, topic: str, **options: Any) -> None:
        """Queues a message; its `on_delivery` is called from `flush`."""

    def flush(self, timeout: float) -> int:
        """Waits for the queue to empty; returns how many messages are left."""


class KafkaSink:
    """Sends JSON values keyed by the entity id, in batches that are acknowledged as a whole.

    Args:
        producer: the client.
        topic_prefix: put in front of the stream's name as it is, with its own separator: "shop.".
        run: names the run in the truth.
        truth: local folder for `<stream>.jsonl`; None: no truth.
        batch_rows: rows of a batch.
        tally: counts what was acknowledged.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        topic_prefix: str,
        run: str,
        truth: Path | None,
        batch_rows: int,
        tally: Tally,
    ) -> None:
        self._producer, self._prefix, self._run, self._tally = producer, topic_prefix, run, tally
        self._truth = None if truth is None else LocalFolder(truth)
        self._batch_rows = batch_rows
        self._waiting: list[Arrival] = []

    def add(self, arrival: Arrival) -> None:
        """Takes a row; sends a batch when it is full."""
        self._waiting.append(arrival)
        if len(self._waiting) >= self._batch_rows:
            self.flush()

    def flush(self) -> None:
        """Sends what waits and returns once Kafka has all of it.

        Raises:
            DeliveryFailed: if a message was refused or not acknowledged in time.
        """
        if not self._waiting:
            return
        rows, self._waiting = self._waiting, []
        places: dict[int, tuple[int, int]] = {}
        reasons: dict[int, str] = {}
        for number, row in enumerate(rows):
            self._producer.produce(
                self._topic(row),
                key=row.event.key.encode(),
                value=json_line(row).encode(),
                on_delivery=_recorder(number, places, reasons),
            )
        self._producer.flush(FLUSH_TIMEOUT_S)
        missing = [number for number in range(len(rows)) if number not in places]
        if missing:
            number = next(iter(reasons), missing[0])
            raise DeliveryFailed(
                topic=self._topic(rows[number]),
                key=rows[number].event.key,
                reason=reasons.get(number, f"no answer within {FLUSH_TIMEOUT_S:.0f} s"),
                unconfirmed=len(missing),
            )
        self._write_truth(rows, places)
        self._tally.add_file(rows)

    def _topic(self, row: Arrival) -> str:
        return f"{self._prefix}{row.event.stream}"

    def _write_truth(self, rows: list[Arrival], places: dict[int, tuple[int, int]]) -> None:
        if self._truth is None:
            return
        lines: dict[StreamName, list[str]] = {}
        for number, row in enumerate(rows):
            partition, offset = places[number]
            line = truth_line(row, run=self._run, file=self._topic(row), row=offset, partition=partition)
            lines.setdefault(row.event.stream, []).append(line)
        for stream, text in lines.items():
            self._truth.append(f"{stream}.jsonl", truth_lines(text))


def kafka_producer(bootstrap_servers: str, config: Mapping[str, str] | None = None) -> Producer:
    """An idempotent producer: no message is lost, doubled or overtaken within its partition.

    Args:
        bootstrap_servers: `host:port`, several with commas.
        config: more settings of librdkafka, such as those for TLS.
    """
    from confluent_kafka import Producer as ConfluentProducer  # heavy: only where Kafka is used

    settings = {
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": int(FLUSH_TIMEOUT_S * 1000) - 5_000,
        **(config or {}),
    }
    return cast(Producer, ConfluentProducer(settings))


def _recorder(
    number: int, places: dict[int, tuple[int, int]], reasons: dict[int, str]
) -> Callable[[object, Message], None]:
    def record(error: object, message: Message) -> None:
        if error is not None:
            reasons[number] = str(error)
        else:
            places[number] = (message.partition() or 0, message.offset() or 0)

    return record
