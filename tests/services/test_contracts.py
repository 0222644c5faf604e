"""Columns more in files on a real MinIO: as tests/spark/test_contracts.py."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.spec import Contract, Files, Ingest, Sink
from tests.spark.test_contracts import T, run
from tests.support import lakes
from tests.support.minio import Minio

COLUMNS = {"k": "STRING", "v": "INT", "t": "TIMESTAMP"}


def test_columns_more_of_files_on_minio_are_kept_or_noticed(spark: SparkSession, minio: tuple[Minio, str]) -> None:
    _, bucket = minio
    lake = Lake(f"s3a://{bucket}/lake")

    def an_ingest(kind: str, contract: Contract) -> Ingest:
        return Ingest(
            name=f"ingest_{kind}",
            source=Files(f"s3a://{bucket}/landing/{kind}", format=kind),
            columns=COLUMNS,
            event_time="t",
            contract=contract,
            sink=Sink(f"bronze.{kind}"),
        )

    csv, parquet = an_ingest("csv", Contract(new="keep")), an_ingest("parquet", Contract())
    landing = Lake(f"s3a://{bucket}/landing").store
    landing.put("csv/a file.csv", b"k,colour,v,t\na,red,1,2026-01-01\n")
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": ["b"], "v": pa.array([2], pa.int32()), "t": [T], "size": [3]}), rows)
    landing.put("parquet/day=1/b file.parquet", rows.getvalue().to_pybytes())
    run(spark, lake, csv, parquet)
    ((_, of_csv),), ((_, of_parquet),) = lakes.ledger(lake, csv), lakes.ledger(lake, parquet)
    assert (of_csv["on_time"], of_csv["unknown"], of_csv.unknown_fields) == (1, 1, ("colour",))
    assert (of_parquet["on_time"], of_parquet["unknown"], of_parquet.unknown_fields) == (1, 1, ("size",))
    (kept,) = lakes.rows(lake, "bronze.csv")
    assert (kept["k"], kept["v"], dict(kept["_unknown_fields"])) == ("a", 1, {"colour": "red"})
