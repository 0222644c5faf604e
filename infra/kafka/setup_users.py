"""Give a Kafka broker its topics and its users, and each user what it needs and no more.

Run as ``python -m infra.kafka.setup_users``; what is there already is brought up to date, so it may run at every
start. The environment says where the broker is (``TIDEMARK_KAFKA``), the administrator's credentials
(``TIDEMARK_KAFKA_…``), the users' passwords (``KAFKA_STREAMS_PASSWORD``, ``KAFKA_SIMULATOR_PASSWORD``) and the topics
that there are to be (``KAFKA_TOPICS``, with commas).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

# The package gives these names without saying so to type checkers.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.inputs.kafka import check_credentials, client_options

USERS = ("streams", "simulator")
PARTITIONS = 3

_ANSWER_S = 30.0
_ITERATIONS = 8192


class KafkaSetupError(TidemarkError):
    """The broker could not be set up; the message says what to do."""


def setup_users(environment: Mapping[str, str]) -> None:
    """Make topics, users and permissions, or bring them up to date.

    Args:
        environment: The variables that the module names; the administrator's own are read from the process's.

    Raises:
        TidemarkError: If a variable is missing, or the broker refuses or does not answer.
    """
    servers = _wanted(environment, "TIDEMARK_KAFKA")
    passwords = {user: _wanted(environment, f"KAFKA_{user.upper()}_PASSWORD") for user in USERS}
    topics = [topic.strip() for topic in _wanted(environment, "KAFKA_TOPICS").split(",")]
    check_credentials(servers)
    admin = AdminClient({**client_options(servers), "log_level": 0})
    credentials: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, _ITERATIONS), password.encode()
        )
        for user, password in passwords.items()
    ]
    try:
        _await(admin.alter_user_scram_credentials(credentials, request_timeout=_ANSWER_S).values())
        _await(
            admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values(),
            unless=KafkaError.TOPIC_ALREADY_EXISTS,
        )
        _await(admin.create_acls(permissions(topics)).values())
        missing = _not_in_effect(admin, permissions(topics))
    except KafkaException as error:
        raise KafkaSetupError(
            f"Kafka at {servers}: {error.args[0].str()}. Some users or topics may be missing. Check that the broker "
            "runs and that TIDEMARK_KAFKA_USERNAME may administer it, then run this again."
        ) from error
    if missing:
        raise KafkaSetupError(
            f"Kafka at {servers}: {len(missing)} permissions are noted, but not in effect after {_ANSWER_S:.0f} s. "
            "Look at the broker's log, then run this again."
        )


def permissions(topics: Iterable[str]) -> list[AclBinding]:
    """What each user may do; all else is refused.

    Args:
        topics: Those that the simulator writes.
    """
    any_topic = (ResourceType.TOPIC, "*", ResourcePatternType.LITERAL)
    # Spark names its consumers so; offsets are also committed for Kafka's own lag tools, under Tidemark's name.
    groups = [(ResourceType.GROUP, name, ResourcePatternType.PREFIXED) for name in ("spark-kafka-source", "tidemark")]
    own = [(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL) for topic in topics]
    return [
        *(_allow("streams", place, AclOperation.READ) for place in (any_topic, *groups)),
        # Whether a topic is compacted, before an ingest that reads it goes back.
        _allow("streams", any_topic, AclOperation.DESCRIBE_CONFIGS),
        *(_allow("simulator", place, AclOperation.WRITE) for place in own),
    ]


def _allow(user: str, place: tuple[ResourceType, str, ResourcePatternType], operation: AclOperation) -> AclBinding:
    # Reading and writing both imply describing.
    return AclBinding(*place, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


@retry(
    retry=retry_if_result(bool),
    stop=stop_after_delay(_ANSWER_S),
    wait=wait_fixed(0.1),
    retry_error_callback=lambda state: state.outcome and state.outcome.result(),
)
def _not_in_effect(admin: AdminClient, wanted: Iterable[AclBinding]) -> set[AclBinding]:
    """The permissions that the broker does not act on yet: it takes a moment to learn what its controller has noted."""
    place = (ResourceType.ANY, None, ResourcePatternType.ANY)
    anything = AclBindingFilter(*place, None, None, AclOperation.ANY, AclPermissionType.ANY)  # type: ignore[arg-type]
    return set(wanted) - set(admin.describe_acls(anything, request_timeout=_ANSWER_S).result(timeout=_ANSWER_S))


def _await(answers: Iterable[Future[Any]], *, unless: int | None = None) -> None:
    for answer in answers:
        try:
            answer.result(timeout=_ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != unless:
                raise


def _wanted(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise KafkaSetupError(f"{name}: expected a value, got none. Nothing was changed. Set it in .env.")
    return value


def main() -> int:
    """Run the set-up; returns the exit code."""
    try:
        setup_users(os.environ)
    except TidemarkError as error:
        print(f"setup_users: {error}", file=sys.stderr)
        return 1
    print(f"topics and users are in place: {', '.join(USERS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
