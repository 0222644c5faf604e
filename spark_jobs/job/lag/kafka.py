"""How far an ingest is behind the topics that it reads, and what Kafka's own tools are told of it."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from spark_jobs.job.lag.base import Lag, SourceLag
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.spark_log import kafka_positions
from spark_jobs.lake.inputs.kafka import client_options
from spark_jobs.lake.settings import Settings
from spark_jobs.spec import Ingest, Kafka

log = logging.getLogger("tidemark.driver")

_ANSWER_S = 5.0


class KafkaLag(SourceLag[Ingest]):
    """Counts the messages behind the offsets that have been read, and tells Kafka's own tools of these.

    Args:
        lake: where.
        definition: of the ingest.
        checkpoint: of its epoch, relative to the lake.
    """

    def __init__(self, lake: Lake, definition: Ingest, checkpoint: str) -> None:
        super().__init__(lake, definition, checkpoint)
        self._source = cast(Kafka, definition.source)
        self._consumer: Consumer | None = None
        self._told: Mapping[str, str] = {}
        self._teller: AdminClient | None = None
        self._refused = False

    def close(self) -> None:
        """Closes the consumer's connections to Kafka, if there are any."""
        if self._consumer is not None:
            self._consumer.close()

    def behind(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag in messages, and Kafka's own tools are told of the offsets that were read.

        Args:
            sources: as `SourceLag.behind`.

        Returns:
            None where no offset has been read yet.

        Raises:
            confluent_kafka.KafkaException: if no broker answers in time.
        """
        places = [TopicPartition(*position) for position in kafka_positions(sources)]
        if not places:
            return None
        consumer = self._kafka()
        behind, waiting = 0, []
        for place in places:
            high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)[1]
            if high > place.offset:
                behind += high - place.offset
                waiting.append(place)
        self._tell_kafka(sources)
        return Lag(behind, _oldest_message(consumer, waiting))

    def _tell_kafka(self, sources: Mapping[str, str]) -> None:
        """Commits what has been read to a consumer group that nobody reads with, so that Kafka's tools show the lag."""
        if sources == self._told or self._refused:
            return
        places = [TopicPartition(*position) for position in kafka_positions(sources)]
        try:
            self._commit(places)
        except KafkaException as error:
            if not _is_refused(error):
                return  # with the next measurement
            # Who may read a topic need not be allowed the group, which only Kafka's own tools ask for.
            log.warning("%s: Kafka's tools are not told of its lag: %s", self._definition.name, error)
            self._refused = True
        self._told = dict(sources)

    # A broker that is asked for a group for the first time has to load it.
    @retry(
        retry=retry_if_exception(lambda error: isinstance(error, KafkaException) and not _is_refused(error)),
        stop=stop_after_delay(_ANSWER_S),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    def _commit(self, places: list[TopicPartition]) -> None:
        """Not by the consumer, which takes a minute and a half to notice that its group is refused."""
        asked = [ConsumerGroupTopicPartitions(self._group, places)]
        for answer in self._admin().alter_consumer_group_offsets(asked, request_timeout=_ANSWER_S).values():
            for place in answer.result().topic_partitions:
                if place.error is not None:
                    raise KafkaException(place.error)

    @property
    def _group(self) -> str:
        return f"tidemark-{self._definition.name}"

    def _admin(self) -> AdminClient:
        if self._teller is None:
            self._teller = AdminClient({**self._options(), "log_level": 0})
        return self._teller

    def _kafka(self) -> Consumer:
        if self._consumer is None:
            options = self._options()
            group = {"group.id": self._group, "enable.auto.commit": False, "log_level": 0}
            # Of what waits, one message of each partition is read, for its time: little is to be fetched ahead. That is
            # no limit in messages: librdkafka counts its own notes among them, and one kept it from fetching.
            ahead = {"fetch.message.max.bytes": 2**16, "queued.max.messages.kbytes": 64, "fetch.queue.backoff.ms": 10}
            self._consumer = Consumer({**options, **group, **ahead, "auto.offset.reset": "earliest"})
        return self._consumer

    def _options(self) -> dict[str, Any]:
        return client_options(self._source.bootstrap_servers or Settings().kafka)


def _is_refused(error: KafkaException) -> bool:
    return bool(error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def _oldest_message(consumer: Consumer, places: Sequence[TopicPartition]) -> datetime | None:
    """When the first of the messages at these places came; None where none waits, or none answers in time."""
    if not places:
        return None
    waiting = {(place.topic, place.partition) for place in places}
    times: list[int] = []
    deadline = time.monotonic() + _ANSWER_S
    consumer.assign(list(places))
    try:
        while waiting and (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None or message.error():
                continue
            kind, at = message.timestamp()
            if (message.topic(), message.partition()) in waiting and kind != TIMESTAMP_NOT_AVAILABLE:
                times.append(at)
            waiting.discard((message.topic(), message.partition()))
    finally:
        consumer.unassign()
    return datetime.fromtimestamp(min(times) / 1000, UTC) if times else None
