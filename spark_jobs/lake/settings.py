"""Settings of a process, from its environment. Credentials are not among them: the AWS chain finds those."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What `TIDEMARK_…` variables say.

    Attributes:
        lake: a folder, or `s3a://bucket/prefix`.
        kafka: bootstrap servers for Kafka sources that name none.
        master: the Spark master.
        driver_memory: heap of the driver's JVM.
        java_options: further options of the driver's JVM, with blanks between them.
        shuffle_partitions: state partitions of a new checkpoint; frozen into it at its first batch.
    """

    model_config = SettingsConfigDict(env_prefix="TIDEMARK_")

    lake: str = "lake"
    kafka: str = "localhost:9092"
    master: str = "local[*]"
    driver_memory: str = "2g"
    java_options: str = ""
    shuffle_partitions: int = Field(default=4, ge=1)


class S3Settings(BaseSettings):
    """Where S3 is, from the variables that AWS's own tools read.

    Attributes:
        endpoint_url: of MinIO or another store that speaks S3; None: AWS.
        region: of the bucket.
    """

    model_config = SettingsConfigDict(env_prefix="AWS_")

    endpoint_url: str | None = None
    region: str = "us-east-1"
