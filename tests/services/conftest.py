from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.services.minio import Minio, minio_binary, start_minio
from tests.services.process import leave_out


@pytest.fixture
def minio(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Minio, str]]:
    """A server, and a bucket on it that the session knows."""
    if minio_binary() is None:
        leave_out("needs MinIO: make setup-tests")
    with start_minio(tmp_path / "minio") as server, patch.dict(os.environ, server.environment()):
        bucket = f"bucket-{urlsplit(server.endpoint).port}"
        server.create_bucket(bucket)
        server.let_in(spark, bucket)
        yield server, bucket
