"""Kafka's messages as rows of text with their place."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.inputs.kafka import check_credentials, kafka_settings
from spark_jobs.lake.settings import KafkaSettings, Settings
from spark_jobs.spec import Kafka


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
