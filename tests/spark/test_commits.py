"""Small upserts from several writers at once, on a real table, without a JVM."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.engine.commits import TableWriter, _retrying, create_table
from spark_jobs.lake.tables import open_table
from tests.builders import a_lake, a_stamp

COLUMNS = StructType(
    [StructField("k", StringType()), StructField("n", LongType()), StructField("revision", LongType())]
)


@pytest.fixture
def lake(tmp_path):
    lake = a_lake(tmp_path)
    create_table(lake, "gold.totals", COLUMNS)
    return lake


def test_upserts_of_several_pipelines_to_one_table_are_all_kept(lake):
    writers, batches = 3, 4
    barrier = Barrier(writers)

    def upsert(number):
        name = f"p{number}"
        writer = TableWriter(lake, "gold.totals", "result", name, query_id="query", epoch=1)
        barrier.wait()
        for batch in range(batches):
            rows = pa.table({"k": [name], "n": pa.array([batch], pa.int64()), "revision": pa.array([1], pa.int64())})
            stamp = a_stamp(batch, pipeline=name, rows=1)
            _retrying(lambda rows=rows, stamp=stamp: writer._merge_once(rows, stamp, ("k",), False))

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(upsert, range(writers)))
    table = open_table(lake, "gold.totals")
    rows = {row["k"]: (row["n"], row["revision"]) for row in table.to_pyarrow_table().to_pylist()}
    assert rows == {f"p{number}": (batches - 1, batches) for number in range(writers)}
