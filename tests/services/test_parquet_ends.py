"""The ends of Parquet files on an object store."""

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.lake.inputs.parquet_files import parquet_shape, stored_schemas
from spark_jobs.lake.store.s3 import s3_store


def test_the_schema_of_each_object_that_can_be_opened(bucket, tmp_path):
    store = s3_store(f"s3a://{bucket}")
    names = [f"a rather long name of a column {number}" for number in range(3000)]
    wide = pa.table({name: pa.array([1], pa.int8()) for name in names})
    small = pa.table({"v": pa.array([1], pa.timestamp("ns"))})
    for name, table in {"in/wide": wide, "in/a b [1]%20.parquet": small}.items():
        pq.write_table(table, tmp_path / "file")
        obstore.put(store, name, (tmp_path / "file").read_bytes())
    obstore.put(store, "in/empty", b"")
    obstore.put(store, "in/text", b"no Parquet at all")
    paths = [f"s3a://{bucket}/in/{name}" for name in ("wide", "a b [1]%20.parquet", "empty", "text", "missing")]
    assert dict(stored_schemas(paths)) == {paths[0]: wide.schema, paths[1]: small.schema}
    assert parquet_shape(s3_store(f"s3a://{bucket}/in"), "wide") == (names, 1)
    assert list(stored_schemas(["s3a://no-such-bucket-here/a"])) == []
