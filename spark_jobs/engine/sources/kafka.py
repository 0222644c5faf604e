"""Kafka's messages as rows of text with their place."""

from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.sources.base import Batch, BatchRows, PlannedBatch, Source
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch, Starts, fix_starts, starts_of
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.inputs.kafka import Topics, check_credentials, kafka_settings
from spark_jobs.lake.settings import KafkaSettings, Settings
from spark_jobs.spec import Ingest, Kafka


class TopicReplacedError(TidemarkError):
    """A Kafka topic was deleted and made again: the offsets of the checkpoint mean messages of the old one."""


class KafkaSource(Source):
    """Topics of a Kafka cluster.

    Args:
        spark: the session of its query.
        lake: where.
        definition: of the ingest.
    """

    def __init__(self, spark: SparkSession, lake: Lake, definition: Ingest) -> None:
        super().__init__(spark, lake, definition)
        self._kafka = cast(Kafka, definition.source)
        self._topics = Topics(self._kafka.bootstrap_servers or Settings().kafka)
        self._topic_id: str | None = None

    def stream(self) -> DataFrame:
        """New messages.

        Raises:
            KafkaSettingsError: as `messages`.
        """
        return messages(self.spark, self._kafka)

    def begin(self, epoch: Epoch) -> bool:
        """Notes which topic a new checkpoint reads.

        Args:
            epoch: of the checkpoint.

        Raises:
            TopicReplacedError: if another one has its name by now.
        """
        noted = starts_of(self.lake, epoch)
        self._topic_id = noted.topics.get(self._kafka.topic) if noted is not None else None
        self.before_batch(epoch)
        return False

    def before_batch(self, epoch: Epoch) -> None:
        """Stops where the topic is not the one that the checkpoint began with; notes it where nobody has yet.

        Args:
            epoch: of the checkpoint.

        Raises:
            TopicReplacedError: if it was deleted and made again under its name.
        """
        name, topic = self.definition.name, self._kafka.topic
        topic_id = self._topics.id_of(topic)
        if topic_id is not None and self._topic_id is None:
            noted = fix_starts(self.lake, epoch, Starts(topics={topic: topic_id}))
            self._topic_id = noted.topics.get(topic)
        if topic_id is not None and topic_id != self._topic_id:
            raise TopicReplacedError(
                f"pipeline `{name}`: topic {topic} was deleted and made again (id {topic_id} instead of "
                f"{self._topic_id}): the checkpoint's offsets mean messages of the old one, and what the new one has "
                "before them would be passed over. Nothing of this batch was written. Read the new one from its start, "
                f"beside the events of the old one: {command('reset', name, '--keep-tables')}"
            )

    def read(self, planned: PlannedBatch) -> Batch:
        """The messages: each brings its place with it.

        Args:
            planned: the batch.
        """
        judge = self.judge(planned.decision)
        kept = judge.kept(planned.frame)
        return Batch(judge, BatchRows(kept.rows, kept.counted))


def messages(spark: SparkSession, source: Kafka) -> DataFrame:
    """A stream of `__raw` (the value as text), `__name` (topic), `__partition`, `__position` (offset), `__block`.

    Partitions that are added to a topic are read from their first message. Messages that Kafka has deleted before
    they were read stop the stream: they would be lost in silence otherwise.

    Raises:
        KafkaSettingsError: if the environment does not say how to reach Kafka, or the broker refuses what it says.
    """
    servers = source.bootstrap_servers or Settings().kafka
    check_credentials(servers)
    options = {
        "kafka.bootstrap.servers": servers,
        **security_options(kafka_settings()),
        "subscribe": source.topic,
        "startingOffsets": source.starting_offsets,
        "failOnDataLoss": "true",
        # What a producer took back with its transaction was never an event.
        "kafka.isolation.level": "read_committed",
    }
    if source.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .select(
            F.col("value").cast("string").alias("__raw"),
            F.col("topic").alias("__name"),
            F.col("partition").alias("__partition"),
            F.col("offset").alias("__position"),
            F.lit(0).cast("bigint").alias("__block"),
        )
    )


def security_options(settings: KafkaSettings) -> dict[str, str]:
    """Options of Spark's Kafka source for a broker that asks who comes.

    Spark redacts an option whose key or value has `password` in it, and Kafka's client hides what it knows to be a
    password: the value of `kafka.sasl.jaas.config` is both.
    """
    options: dict[str, str] = {}
    if settings.security_protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = settings.security_protocol
    if settings.ssl_ca_location is not None:
        # By content: an executor on another host need not have the file.
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = settings.ssl_ca_location.read_text(encoding="utf-8")
    if settings.with_sasl and settings.username is not None and settings.password is not None:
        module = "plain.PlainLoginModule" if settings.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        user, password = _quoted(settings.username), _quoted(settings.password.get_secret_value())
        options["kafka.sasl.mechanism"] = settings.sasl_mechanism
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user} password={password};"
        )
    return options


def _quoted(text: str) -> str:
    """A string of a JAAS entry: Java's StreamTokenizer takes backslashes as C does, and a line's end as the end."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'
