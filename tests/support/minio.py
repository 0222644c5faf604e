"""A MinIO server for the length of a ``with`` block."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from pyspark.sql import SparkSession

from spark_jobs.console.laptop.ports import free_port
from tests.support.process import REPOSITORY, ServiceError, running

REGION = "us-east-1"


@dataclass(frozen=True)
class Minio:
    """A running server.

    Attributes:
        endpoint: Its URL, ``http://127.0.0.1:port``.
        access_key: The root user.
        secret_key: The root user's password.
    """

    endpoint: str
    access_key: str = "tidemark"
    secret_key: str = "tidemark-secret"

    def client(self) -> Any:
        """Return a new boto3 S3 client for the server."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def create_bucket(self, name: str) -> None:
        """Make a bucket that does not exist yet."""
        self.client().create_bucket(Bucket=name)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys below a prefix, in order."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def read(self, bucket: str, key: str) -> str:
        """Return the text of an object."""
        text: str = self.client().get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        return text

    def environment(self) -> dict[str, str]:
        """Return what leads a driver to the server, as the usual AWS variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
        }

    def let_in(self, spark: SparkSession, bucket: str) -> None:
        """Tell a session that was there before of a bucket; it keeps what it knows, so no other may have that name."""
        known = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
        for name, value in self.hadoop_settings().items():
            known.set(name.replace("fs.s3a.", f"fs.s3a.bucket.{bucket}."), value)

    def hadoop_settings(self, endpoint: str | None = None) -> dict[str, str]:
        """Return what S3A needs to know, as Hadoop settings (without ``spark.hadoop.``)."""
        return {
            "fs.s3a.endpoint": endpoint or self.endpoint,
            "fs.s3a.endpoint.region": REGION,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.access.key": self.access_key,
            "fs.s3a.secret.key": self.secret_key,
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }


def minio_binary() -> Path | None:
    """Return the server's program: the one built into ``.cache/bin``, else the one on PATH, else none."""
    built = REPOSITORY / ".cache/bin/minio"
    if built.is_file():
        return built
    installed = shutil.which("minio")
    return Path(installed) if installed else None


@contextmanager
def start_minio(root: Path) -> Iterator[Minio]:
    """Run a server on a free loopback port.

    Args:
        root: An empty or fresh folder for its data and its log.

    Raises:
        ServiceError: If there is no program, or it does not start.
    """
    binary = minio_binary()
    if binary is None:
        raise ServiceError("minio: expected .cache/bin/minio or one on PATH, found none. Run `make setup-tests`.")
    data = root / "data"
    data.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    server = Minio(f"http://{address}")

    def is_ready() -> bool:
        # `ready` is said before users and buckets are loaded; what asks then is told to come back in 60 seconds.
        try:
            with urllib.request.urlopen(f"{server.endpoint}/minio/health/cluster", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MINIO_")},
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    command = [str(binary), "server", str(data), "--address", address, "--quiet"]
    with running("minio", command, log=root / "minio.log", is_ready=is_ready, environment=environment):
        yield server
