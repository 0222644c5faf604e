"""Settings of a process, from its environment. Credentials of S3 are not among them: the AWS chain finds those."""

import os
from datetime import timedelta
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from spark_jobs.spec.durations import Duration


class Settings(BaseSettings):
    """What `TIDEMARK_…` variables say.

    Attributes:
        lake: a folder, or `s3a://bucket/prefix`.
        kafka: bootstrap servers for Kafka sources that name none.
        master: the Spark master.
        spark_secret: what master, workers and drivers of a standalone cluster prove to each other that they know; None:
            they take whoever comes.
        driver_memory: heap of the driver's JVM.
        executor_memory: heap of each executor's JVM, on a cluster.
        java_options: further options of the JVMs of driver and executors, with blanks between them.
        max_line_bytes: of a line of an input file; a file with a longer one is set aside.
        shuffle_partitions: state partitions of a new checkpoint; frozen into it at its first batch.
        host: how this host calls itself in the lake's control objects; empty: its network name.
        metrics_port: where the supervisor serves metrics; drivers take the next free ports. 0: no metrics.
        metrics_address: on which metrics are served.
        logs: folder of the drivers' logs.
        batch_access_key_id: who the backfills and repairs that Airflow starts are to S3, where Airflow itself may not
            write results; None: who Airflow is.
        batch_secret_access_key: of that user.
        batch_niceness: by how much the priority of backfills, repairs, audits, checks and maintenance is lowered, as
            `nice` does it; 0: not at all.
        pages_url: where Airflow shows the pages of tables, for a check to print; None: it prints where they lie.
    """

    model_config = SettingsConfigDict(env_prefix="TIDEMARK_")

    lake: str = "lake"
    kafka: str = "localhost:9092"
    master: str = "local[*]"
    spark_secret: SecretStr | None = None
    driver_memory: str = "2g"
    executor_memory: str = "1g"
    java_options: str = ""
    max_line_bytes: int = Field(default=16 * 2**20, ge=1024, le=1024 * 2**20)
    shuffle_partitions: int = Field(default=4, ge=1)
    host: str = ""
    metrics_port: int = Field(default=9463, ge=0, le=65000)
    metrics_address: str = "127.0.0.1"
    logs: str = "logs"
    batch_access_key_id: str | None = None
    batch_secret_access_key: SecretStr | None = None
    batch_niceness: int = Field(default=10, ge=0, le=19)
    pages_url: str | None = None

    @field_validator("spark_secret")
    @classmethod
    def _is_given(cls, secret: SecretStr | None) -> SecretStr | None:
        # A variable that is set to nothing, as compose passes an optional one, is one that is not set.
        return secret if secret is not None and secret.get_secret_value() else None


class Retention(BaseSettings):
    """How much of the past maintenance keeps, from `TIDEMARK_KEEP_…`.

    Attributes:
        versions: versions of tables: their logs, and the data files that only these name.
        lookups: of tables in which pipelines look columns up; a backfill needs the versions that the stream took.
        metrics: rows of `ops.metrics`.
        alerts: rows of `ops.alerts`.
        quality: rows of `ops.quality`.
        rebuilt: tables that rebuilds have built aside and nobody has written to since.
        airflow_logs: logs of Airflow's tasks.
    """

    model_config = SettingsConfigDict(env_prefix="TIDEMARK_KEEP_", frozen=True)

    versions: Duration = timedelta(days=7)
    lookups: Duration = timedelta(days=30)
    metrics: Duration = timedelta(days=90)
    alerts: Duration = timedelta(days=365)
    quality: Duration = timedelta(days=365)
    rebuilt: Duration = timedelta(days=7)
    airflow_logs: Duration = timedelta(days=30)

    @field_validator("*")
    @classmethod
    def _longer_than_a_run(cls, kept: timedelta) -> timedelta:
        # Who reads a table must not lose its files on the way.
        if kept < timedelta(hours=1):
            raise ValueError("expected 1 hour at least")
        return kept


class S3Settings(BaseSettings):
    """Where S3 is, from the variables that AWS's own tools read.

    Attributes:
        endpoint_url: of MinIO or another store that speaks S3, `http://…` or `https://…`; None: AWS.
        region: of the bucket; `AWS_REGION`, or `AWS_DEFAULT_REGION` as AWS's command line has it.
    """

    model_config = SettingsConfigDict(env_prefix="AWS_")

    endpoint_url: str | None = None
    region: str = Field(default="us-east-1", validation_alias=AliasChoices("AWS_REGION", "AWS_DEFAULT_REGION"))

    @classmethod
    def of_environment(cls) -> Self:
        """The settings; what the libraries of S3 read for themselves in the environment is made to agree with them.

        They panic at a variable that is set to nothing, and ask the network for a region that is in none. Only the
        first call changes anything: their threads must not read an environment that is being written.
        """
        for name in [name for name, value in os.environ.copy().items() if name.startswith("AWS_") and not value]:
            del os.environ[name]
        settings = cls()
        if os.environ.get("AWS_REGION") != settings.region:
            os.environ["AWS_REGION"] = settings.region
        return settings

    @field_validator("endpoint_url")
    @classmethod
    def _is_an_address(cls, text: str | None) -> str | None:
        if text is not None and not (text.startswith(("http://", "https://")) and urlsplit(text).netloc):
            raise ValueError("expected http://host:port or https://host")
        return text

    @property
    def plain_http(self) -> bool:
        """Whether the address says that what is sent is not encrypted."""
        return (self.endpoint_url or "").startswith("http://")


class KafkaSettings(BaseSettings):
    """Who this process is to Kafka, from `TIDEMARK_KAFKA_…`; definitions, logs and tables never hold it.

    Attributes:
        security_protocol: of the listener, in Kafka's own words.
        sasl_mechanism: how the password is proved; only with one of the SASL protocols.
        username: with SASL.
        password: with SASL.
        ssl_ca_location: PEM file of the authority that signed the brokers' certificates; None: the system's.
    """

    # A variable that is set to nothing, as compose passes an optional one, is one that is not set.
    model_config = SettingsConfigDict(env_prefix="TIDEMARK_KAFKA_", env_ignore_empty=True, hide_input_in_errors=True)

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-256"
    username: str | None = None
    password: SecretStr | None = None
    ssl_ca_location: FilePath | None = None

    @property
    def with_sasl(self) -> bool:
        """Whether the listener wants a user and a password."""
        return self.security_protocol.startswith("SASL_")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = {"USERNAME": self.username, "PASSWORD": self.password}
        missing = [f"TIDEMARK_KAFKA_{name}" for name, value in given.items() if value is None]
        if self.with_sasl and missing:
            raise ValueError(f"{self.security_protocol} wants {' and '.join(missing)}: set it")
        if not self.with_sasl and len(missing) < len(given):
            # Credentials that nobody asks for are a forgotten protocol: the broker would only say that it hung up.
            raise ValueError("a user or a password without SASL: set TIDEMARK_KAFKA_SECURITY_PROTOCOL to SASL_SSL")
        return self
