"""Batches of an ingest that are written while they are judged, on a real MinIO (tests/spark/test_written_ingest.py)."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.halting import BrokenRuleError
from spark_jobs.engine.sources import files
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Between, NotNull
from tests.spark.test_written_ingest import a_landing, an_ingest, assert_all_is_there, run
from tests.support.minio import Minio


# What a batch has written to MinIO is there, and is taken away: test_written_results.py. An ingest that halts, and each
# of its lines, on a folder: tests/spark/test_written_ingest.py.
@pytest.mark.long
def test_on_minio_all_lines_are_there_and_a_halt_leaves_no_file(
    spark: SparkSession, minio: tuple[Minio, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket = minio
    landing = a_landing(tmp_path / "landing")
    monkeypatch.setattr(files, "WRITTEN_BYTES", 0)

    def there(lake: str) -> set[str]:
        """Data files of bronze in the bucket."""
        prefix = f"{lake}/bronze/sales/"
        names = {key.removeprefix(prefix) for key in server.keys(bucket, prefix)}
        return {name for name in names if name.endswith(".parquet") and "/" not in name}

    halting = an_ingest(landing, rules=(NotNull("k"), Between("v", max=40, on_failure="fail")))
    with pytest.raises(BrokenRuleError, match="rows of batch 0 break"):
        run(spark, Lake(f"s3a://{bucket}/halted"), halting)
    assert there("halted") == set()

    lake, definition = Lake(f"s3a://{bucket}/whole"), an_ingest(landing)
    run(spark, lake, definition)
    assert_all_is_there(lake, definition)
    named = {unquote(uri).rpartition("/")[2] for uri in open_table(lake, "bronze.sales").file_uris()}
    assert there("whole") == named != set()
