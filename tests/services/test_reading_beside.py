"""Pipelines that read a table of a real MinIO while their ingest fills it: as tests/spark/test_reading_beside.py."""

from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.spec import Files
from tests.spark.test_driver import failures
from tests.spark.test_reading_beside import INGEST, READER, Watched, landed, read
from tests.support import lakes
from tests.support.minio import Minio


def test_a_table_in_a_bucket_is_read_in_full_batches_while_it_is_filled(
    spark: SparkSession, minio: tuple[Minio, str], tmp_path: Path
) -> None:
    landing = landed(tmp_path / "files").path("landing")
    ingest = INGEST.model_copy(update={"source": Files(landing, max_files_per_trigger=1)})
    lake = Lake(f"s3a://{minio[1]}/lake")
    waits_for = {1: Watched.waits_for_reader_to_wait, 3: Watched.waits_for_reader_to_read}

    assert failures(Watched(spark, lake, waits_for, ingest).run()) == {}

    assert read(lake) == [6, 6, 3]
    lakes.assert_balanced(lake, READER)
