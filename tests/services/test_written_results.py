"""Results that are written while they are computed, on a real MinIO: as tests/spark/test_written_results.py."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine import pipeline as engine
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spark.data_files import DataFiles
from tests.spark.test_written_results import BATCHES, COLUMNS, DEFINITION, LAST, MINUTE, START
from tests.support import lakes
from tests.support.minio import Minio

TABLE, PREFIX = "silver.firsts", "lake/silver/firsts/"


def test_a_batch_on_minio_that_dies_before_its_commit_leaves_no_row(
    spark: SparkSession, minio: tuple[Minio, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket = minio
    lake = Lake(f"s3a://{bucket}/lake")
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for batch in BATCHES:
        bronze.append([{"k": k, "v": v, "t": lakes.at(START + minute * MINUTE)} for k, v, minute in batch])
    monkeypatch.setattr(engine, "LEAST_ROWS_A_FILE", 0)
    written: list[set[str]] = []
    write = DataFiles.write

    def watched(self: DataFiles, *args: Any) -> list[dict[str, Any]]:
        files = write(self, *args)
        written.append({unquote(add["path"]) for add in files})
        return files

    monkeypatch.setattr(DataFiles, "write", watched)

    def there() -> set[str]:
        """Data files in the bucket."""
        names = {key.removeprefix(PREFIX) for key in server.keys(bucket, PREFIX)}
        return {name for name in names if not name.startswith("_delta_log/")}

    def named() -> set[str]:
        """Data files that the table's log names."""
        return {unquote(uri).rpartition("/")[2] for uri in open_table(lake, TABLE).file_uris()}

    def dies(reached: str, batch_id: int) -> None:
        if (reached, batch_id) == ("late_committed", LAST):
            raise RuntimeError("cut off")

    # An error: what the batch has written is taken away. A death: nobody takes it away, and nobody reads it.
    for by_an_error in (True, False):
        with monkeypatch.context() as patched:
            if not by_an_error:
                patched.setattr(DataFiles, "remove", lambda *_: None)
            with pytest.raises(RuntimeError, match="cut off"):
                lakes.run(spark, lake, DEFINITION, failpoint=dies)
        assert written[-1], "the batch has written files"
        assert written[-1] & there() == (set() if by_an_error else written[-1])
        assert not written[-1] & named()
        assert sorted(row["k"] for row in lakes.rows(lake, TABLE)) == ["a", "b", "c", "d"]
    left = written[-1]
    lakes.run(spark, lake, DEFINITION)

    assert len(written) == len(BATCHES) + 2, "each batch was written while it was computed, the last one three times"
    assert sorted(row["k"] for row in lakes.rows(lake, TABLE)) == ["a", "b", "c", "d", "h"]
    late = lakes.rows(lake, "silver.firsts__late")
    assert sorted((row["k"], row["v"]) for row in late) == [("a", 2), ("e", 3)]
    lakes.assert_balanced(lake, DEFINITION)
    assert written[-1] <= named()
    assert not left & named()
    assert left <= there()
