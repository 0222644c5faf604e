"""Kafka without a JVM: what its own client is told, whether a broker takes the credentials, and its newest messages."""

import time
from typing import Any

from pydantic import ValidationError

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.settings import KafkaSettings

_ANSWER_WITHIN_S = 10.0


class KafkaSettingsError(TidemarkError):
    """The `TIDEMARK_KAFKA_…` variables do not fit together, or a broker refuses what they say."""


class KafkaUnreachableError(TidemarkError):
    """No broker answers what it is asked."""


def kafka_settings() -> KafkaSettings:
    """How to reach Kafka, from the environment.

    Raises:
        KafkaSettingsError: if a variable is wrong or missing; it names the variable and never its value.
    """
    try:
        return KafkaSettings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = f"TIDEMARK_KAFKA_{str(first['loc'][0]).upper()}: " if first["loc"] else ""
        raise KafkaSettingsError(
            f"Kafka: {name}{first['msg'].removeprefix('Value error, ')}. Nothing was read or written."
        ) from None


def client_options(bootstrap_servers: str) -> dict[str, str]:
    """Options of librdkafka (`confluent_kafka`) that lead to Kafka as this process may use it.

    Args:
        bootstrap_servers: `host:port`, several with commas.

    Raises:
        KafkaSettingsError: if the environment does not say how.
    """
    return {"bootstrap.servers": bootstrap_servers, **_security(kafka_settings())}


def check_credentials(bootstrap_servers: str) -> None:
    """Asks a broker whether it takes the credentials of the environment.

    Clients try again for minutes where a password is wrong, and say so in the middle of a stack trace. A broker that
    does not answer is left to them: it may come back. Without SASL there is nothing to ask.

    Args:
        bootstrap_servers: `host:port`, several with commas.

    Raises:
        KafkaSettingsError: if the broker refuses them; it says what to set, and never the password.
    """
    settings = kafka_settings()
    if not settings.with_sasl:
        return
    from confluent_kafka import KafkaError, KafkaException  # heavy: only where Kafka is used
    from confluent_kafka.admin import AdminClient

    refusals: list[str] = []

    def on_error(error: Any) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL):
            refusals.append(error.str())

    options: dict[str, Any] = {**client_options(bootstrap_servers), "error_cb": on_error, "log_level": 0}
    # The callback runs only in `poll`, so the broker is asked in short turns until it answers one way or the other.
    try:
        client = AdminClient(options)
        for _ in range(int(_ANSWER_WITHIN_S)):
            try:
                client.list_topics(timeout=1.0)
            except KafkaException:
                client.poll(0)
            else:
                return
            if refusals:
                break
    except KafkaException as error:
        refusals.append(str(error.args[0]))
    if refusals:
        said = refusals[0].partition(": ")[2] or refusals[0]
        raise KafkaSettingsError(
            f"Kafka at {bootstrap_servers}: refuses user `{settings.username}` ({said}). Nothing was read or written. "
            "Set TIDEMARK_KAFKA_USERNAME and TIDEMARK_KAFKA_PASSWORD to a user of the cluster, and "
            f"TIDEMARK_KAFKA_SASL_MECHANISM and TIDEMARK_KAFKA_SECURITY_PROTOCOL (now {settings.sasl_mechanism} over "
            f"{settings.security_protocol}) to what its listener speaks."
        )


class Topics:
    """Asks a broker about topics.

    Args:
        bootstrap_servers: `host:port`, several with commas.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._client: Any = None

    def id_of(self, topic: str) -> str | None:
        """The id that a topic got when it was made; None where the broker does not tell, or there is no such topic."""
        from confluent_kafka import KafkaException, TopicCollection  # heavy: only where Kafka is used
        from confluent_kafka.admin import AdminClient

        try:
            if self._client is None:
                self._client = AdminClient({**client_options(self._servers), "log_level": 0})
            asked = self._client.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_WITHIN_S)
            found = asked[topic].result()
        except KafkaException:
            return None
        return str(found.topic_id) if found.topic_id is not None else None

    def is_compacted(self, topic: str) -> bool:
        """Whether a topic keeps only the newest message of each key; False where the broker does not tell."""
        from confluent_kafka import KafkaException  # heavy: only where Kafka is used
        from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

        try:
            asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
            client = AdminClient({**client_options(self._servers), "log_level": 0})
            (answer,) = client.describe_configs([asked], request_timeout=_ANSWER_WITHIN_S).values()
            return "compact" in str(answer.result()["cleanup.policy"].value)
        except (KafkaException, KeyError):
            return False


def offsets_held(bootstrap_servers: str, topic: str) -> dict[int, tuple[int, int]]:
    """Partition of a topic -> its first message, and the one that comes next; none where there is no such topic.

    Args:
        bootstrap_servers: `host:port`, several with commas.
        topic: its name.

    Raises:
        KafkaSettingsError: if the environment does not say how to reach Kafka, or the broker refuses what it says.
        KafkaUnreachableError: if no broker answers.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition  # heavy: only where Kafka is used

    check_credentials(bootstrap_servers)
    consumer = Consumer({**client_options(bootstrap_servers), "group.id": "tidemark-offsets", "log_level": 0})
    try:
        found = consumer.list_topics(topic, timeout=_ANSWER_WITHIN_S).topics[topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return {}
        if found.error is not None:
            raise KafkaException(found.error)
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_WITHIN_S)
            for number in found.partitions
        }
    except KafkaException as error:
        said = error.args[0].str() if hasattr(error.args[0], "str") else str(error)
        raise KafkaUnreachableError(
            f"Kafka at {bootstrap_servers}: does not tell which messages topic {topic} has ({said}). Nothing was read "
            "or written. Run the same command again when it answers, or where it can be reached (TIDEMARK_KAFKA)."
        ) from error
    finally:
        consumer.close()


def newest_messages(bootstrap_servers: str, topic: str, at_most: int, *, within_s: float = 5.0) -> list[bytes]:
    """Values of the newest messages of a topic, about as many of each partition; no offset is committed.

    Args:
        bootstrap_servers: `host:port`, several with commas.
        topic: its name.
        at_most: so many messages.
        within_s: a broker that takes longer is not waited for; what came until then is returned.

    Raises:
        KafkaSettingsError: if the environment does not say how to reach Kafka.
        KafkaException: if the broker does not answer.
    """
    from confluent_kafka import Consumer, KafkaError, TopicPartition  # heavy: only where Kafka is used

    ends_at = time.monotonic() + within_s
    # With `assign` there is no group to join; librdkafka wants a name all the same.
    options = {"group.id": "tidemark-sample", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**client_options(bootstrap_servers), **options})
    try:
        partitions = consumer.list_topics(topic, timeout=within_s).topics[topic].partitions
        starts: dict[int, int] = {}
        for number in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=within_s)
            if high > low:
                starts[number] = max(low, high - -(-at_most // len(partitions)))
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in starts.items()])
        values: list[bytes] = []
        reading = set(starts)
        while reading and len(values) < at_most and (left := ends_at - time.monotonic()) > 0:
            message = consumer.poll(left)
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                break
            if error is not None:
                reading.discard(message.partition())
            elif (value := message.value()) is not None:
                values.append(value if isinstance(value, bytes) else str(value).encode())
        return values
    finally:
        consumer.close()


def _security(settings: KafkaSettings) -> dict[str, str]:
    options: dict[str, str] = {}
    if settings.security_protocol != "PLAINTEXT":
        options["security.protocol"] = settings.security_protocol
    if settings.ssl_ca_location is not None:
        options["ssl.ca.location"] = str(settings.ssl_ca_location)
    if settings.with_sasl and settings.username is not None and settings.password is not None:
        options |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.username,
            "sasl.password": settings.password.get_secret_value(),
        }
    return options
