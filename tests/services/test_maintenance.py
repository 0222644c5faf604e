"""Maintenance of a table on a real MinIO, beside a writer that goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.history import commits_between
from spark_jobs.lake.maintenance.retention import first_version
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.maintain.execute import Maintenance
from spark_jobs.operations.maintain.plan import Pace
from tests.support import lakes
from tests.support.minio import Minio


def test_a_table_on_minio_is_compacted_cut_and_cleaned(minio_server: Minio, bucket: str) -> None:
    lake = Lake(f"s3a://{bucket}/lake")
    bronze = lakes.Bronze(lake, "bronze.clicks", {"k": pa.string(), "t": lakes.TIMESTAMP}, "t")
    hour = timedelta(hours=1)
    pace = Pace(now=datetime.now(UTC) + 48 * hour, quiet=timedelta(0), in_flight=hour, fewest_commits=3, fewest_files=2)
    maintenance = Maintenance(lake, Retention(versions=hour, lookups=hour), pace)
    for first in (0, 20):
        for number in range(first, first + 20):
            bronze.append([{"k": f"u{number}", "t": lakes.at(1_767_225_600_000 + number)}])
        done = {table.name: maintenance.execute(table) for table in maintenance.tables()}["bronze.clicks"]
        assert (done.files_after, done.problem) == (1, None)
    opened = open_table(lake, "bronze.clicks")
    assert sorted(opened.to_pyarrow_table().column("k").to_pylist()) == sorted(f"u{n}" for n in range(40))
    assert first_version(lake, "bronze.clicks") == opened.version() - 2
    # Two of batches before the newest compaction, and its file; the files of the first twenty are gone.
    files = [
        key
        for key in minio_server.keys(bucket, "lake/bronze/clicks/")
        if key.endswith(".parquet") and "_delta_log" not in key
    ]
    assert len(files) == 1 + 20 + 1
    assert [version for version, _ in commits_between(lake, "bronze.clicks", 0, opened.version())] == list(
        range(opened.version() + 1)
    )
