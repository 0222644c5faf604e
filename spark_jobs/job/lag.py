"""How far a pipeline is behind its source, and what Kafka's own tools are told of it."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import file_entries, file_number, kafka_positions, next_version
from spark_jobs.lake.commit_records.history import commit_at
from spark_jobs.lake.inputs.folders import source_store
from spark_jobs.lake.inputs.kafka import client_options
from spark_jobs.lake.settings import Settings
from spark_jobs.spec import Definition, Files, Kafka, Pipeline

log = logging.getLogger("tidemark.driver")

_ANSWER_S = 5.0
_MOST_COMMITS = 500


@dataclass(frozen=True)
class Lag:
    """What a source has and a pipeline has not read.

    Attributes:
        rows: events of a table, messages of Kafka, or files.
        oldest: when the oldest of them came; None where nothing is behind, or nobody knows.
    """

    rows: int
    oldest: datetime | None = None


class LagMeter:
    """Measures how far one pipeline is behind; no oftener than every ten seconds, or a twentieth of its time.

    Args:
        lake: where.
        definition: of the pipeline.
        checkpoint: of its epoch, relative to the lake.
        clock: seconds that only grow.
    """

    def __init__(
        self, lake: Lake, definition: Definition, checkpoint: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lake = lake
        self._definition = definition
        self._checkpoint = checkpoint
        self._clock = clock
        self._due_at = 0.0
        self._known: Lag | None = None
        self._consumer: Consumer | None = None
        self._told: Mapping[str, str] = {}
        self._teller: AdminClient | None = None
        self._refused = False

    def measure(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag after the newest batch; None where it is not known.

        Args:
            sources: source -> offset up to which the newest batch has read, as its ledger row has it.
        """
        began = self._clock()
        if began >= self._due_at:
            try:
                self._known = self._behind(sources)
            finally:
                # Also where it failed: a source that does not answer is asked no oftener than one that does.
                self._due_at = self._clock() + max(10.0, 20 * (self._clock() - began))
        return self._known

    def close(self) -> None:
        """Leaves Kafka."""
        if self._consumer is not None:
            self._consumer.close()

    def _behind(self, sources: Mapping[str, str]) -> Lag | None:
        source = self._definition.source
        if isinstance(source, Files):
            return self._behind_files(source, sources)
        if isinstance(source, Kafka):
            return self._behind_kafka(source, sources)
        return self._behind_tables(sources)

    # --- tables ---

    def _behind_tables(self, sources: Mapping[str, str]) -> Lag | None:
        if not isinstance(self._definition, Pipeline) or not sources:
            return None
        rows, oldest = 0, []
        for source, offset in sources.items():
            table = table_read(source, self._definition)
            for commit in commits_after(self._lake, table, next_version(offset)) if table and offset else ():
                metrics = commit.get("operationMetrics", {})
                rows += int(metrics.get("numOutputRows") or metrics.get("num_added_rows") or 0)
                oldest.append(committed_at(commit))
        return Lag(rows, min(oldest, default=None) if rows else None)

    # --- files ---

    def _behind_files(self, source: Files, sources: Mapping[str, str]) -> Lag | None:
        newest_ms = self._newest_file_ms(sources)
        store = source_store(self._lake, source)
        if store is None:
            return None
        waiting = [
            item["last_modified"]
            for items in store.list()
            for item in items
            if not item["path"].rsplit("/", 1)[-1].startswith(("_", "."))
            and item["last_modified"].timestamp() * 1000 >= newest_ms + 1
        ]
        return Lag(len(waiting), min(waiting, default=None))

    def _newest_file_ms(self, sources: Mapping[str, str]) -> int:
        """Modification time of the newest file that has been planned: Spark takes files in this order."""
        offset = next(iter(sources.values()), "")
        if not offset:
            return -1
        try:
            entries = file_entries(self._lake, self._checkpoint, file_number(offset))
        except FileNotFoundError:
            return -1
        return max((int(entry["timestamp"]) for entry in entries), default=-1)

    # --- Kafka ---

    def _behind_kafka(self, source: Kafka, sources: Mapping[str, str]) -> Lag | None:
        places = [TopicPartition(*position) for position in kafka_positions(sources)]
        if not places:
            return None
        consumer = self._kafka(source)
        behind, waiting = 0, []
        for place in places:
            high = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)[1]
            if high > place.offset:
                behind += high - place.offset
                waiting.append(place)
        self._tell_kafka(source, sources)
        return Lag(behind, _oldest_message(consumer, waiting))

    def _tell_kafka(self, source: Kafka, sources: Mapping[str, str]) -> None:
        """Commits what has been read to a consumer group that nobody reads with, so that Kafka's tools show the lag."""
        if sources == self._told or self._refused:
            return
        places = [TopicPartition(*position) for position in kafka_positions(sources)]
        try:
            self._commit(source, places)
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
    def _commit(self, source: Kafka, places: list[TopicPartition]) -> None:
        """Not by the consumer, which takes a minute and a half to notice that its group is refused."""
        asked = [ConsumerGroupTopicPartitions(self._group, places)]
        for answer in self._admin(source).alter_consumer_group_offsets(asked, request_timeout=_ANSWER_S).values():
            for place in answer.result().topic_partitions:
                if place.error is not None:
                    raise KafkaException(place.error)

    @property
    def _group(self) -> str:
        return f"tidemark-{self._definition.name}"

    def _admin(self, source: Kafka) -> AdminClient:
        if self._teller is None:
            self._teller = AdminClient({**_options(source), "log_level": 0})
        return self._teller

    def _kafka(self, source: Kafka) -> Consumer:
        if self._consumer is None:
            options = _options(source)
            group = {"group.id": self._group, "enable.auto.commit": False, "log_level": 0}
            # Of what waits, one message of each partition is read, for its time: nothing is to be fetched ahead.
            fetch = {"auto.offset.reset": "earliest", "queued.min.messages": 1, "fetch.message.max.bytes": 2**16}
            self._consumer = Consumer({**options, **group, **fetch})
        return self._consumer


def _is_refused(error: KafkaException) -> bool:
    return bool(error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def _options(source: Kafka) -> dict[str, Any]:
    return client_options(source.bootstrap_servers or Settings().kafka)


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


def committed_at(commit: Mapping[str, Any]) -> datetime:
    """When a version of a Delta table was committed."""
    return datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, UTC)


def commits_after(lake: Lake, table: str, version: int) -> Iterator[Mapping[str, Any]]:
    """The commits of a table from a version on, at most some hundreds: more is behind in any case."""
    for number in range(version, version + _MOST_COMMITS):
        commit = commit_at(lake, table, number)
        if commit is None:
            return
        yield commit
