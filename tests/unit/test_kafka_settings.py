"""What the `TIDEMARK_KAFKA_…` variables make of a connection to Kafka, and how a mistake in them is told."""

import re
from pathlib import Path

import pytest

from spark_jobs.engine.sources.kafka import security_options
from spark_jobs.lake.inputs.kafka import KafkaSettingsError, client_options, kafka_settings

NAMES = ("SECURITY_PROTOCOL", "SASL_MECHANISM", "USERNAME", "PASSWORD", "SSL_CA_LOCATION")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"TIDEMARK_KAFKA_{name}", raising=False)


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TIDEMARK_KAFKA_{name}", value)


def test_without_settings_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_options("127.0.0.1:9092") == {"bootstrap.servers": "127.0.0.1:9092"}
    assert security_options(kafka_settings()) == {}


def test_a_variable_that_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **dict.fromkeys(NAMES, ""))
    assert client_options("127.0.0.1:9092") == {"bootstrap.servers": "127.0.0.1:9092"}


def test_both_clients_are_told_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    given(
        monkeypatch,
        SECURITY_PROTOCOL="SASL_SSL",
        SASL_MECHANISM="SCRAM-SHA-512",
        USERNAME="streams",
        PASSWORD="secret",
        SSL_CA_LOCATION=str(authority),
    )
    assert client_options("kafka:9092") == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "streams",
        "sasl.password": "secret",
        "ssl.ca.location": str(authority),
    }
    assert security_options(kafka_settings()) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="streams" password="secret";'
        ),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----",
    }


def test_a_password_cannot_end_its_own_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    given(
        monkeypatch,
        SECURITY_PROTOCOL="SASL_PLAINTEXT",
        SASL_MECHANISM="PLAIN",
        USERNAME="streams",
        PASSWORD='a"; b\\"\nc',
    )
    assert security_options(kafka_settings())["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="streams" password="a\\"; b\\\\\\"\\nc";'
    )


def test_the_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SECURITY_PROTOCOL="SASL_SSL", USERNAME="streams", PASSWORD="no-one-sees-it")
    assert "no-one-sees-it" not in repr(kafka_settings())


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SECURITY_PROTOCOL": "SASL_SSL"}, "wants TIDEMARK_KAFKA_USERNAME and TIDEMARK_KAFKA_PASSWORD: set it"),
        ({"SECURITY_PROTOCOL": "SASL_SSL", "USERNAME": "streams"}, "wants TIDEMARK_KAFKA_PASSWORD: set it"),
        ({"USERNAME": "streams", "PASSWORD": "no-one-sees-it"}, "set TIDEMARK_KAFKA_SECURITY_PROTOCOL to"),
        ({"SECURITY_PROTOCOL": "TLS"}, "TIDEMARK_KAFKA_SECURITY_PROTOCOL: Input should be"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "/no/such.pem"}, "TIDEMARK_KAFKA_SSL_CA_LOCATION: Path does"),
    ],
)
def test_settings_that_do_not_fit_together_name_the_variable(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TIDEMARK_KAFKA_{name}", value)
    with pytest.raises(KafkaSettingsError, match=re.escape(told)) as raised:
        client_options("127.0.0.1:9092")
    assert "no-one-sees-it" not in str(raised.value)
