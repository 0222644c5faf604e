"""What the ends of Parquet files tell, and of which files they tell nothing."""

import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import LocalStore

from spark_jobs.lake.inputs.parquet_files import parquet_shape, stored_schemas

COLUMNS = pa.schema([("k", pa.string()), ("v", pa.timestamp("ns")), ("none", pa.null())])
ROW = {"k": ["a"], "v": [1], "none": [None]}


def test_the_schema_of_each_file_that_can_be_opened(tmp_path):
    pq.write_table(pa.table(ROW, COLUMNS), tmp_path / "one [1]%20.parquet")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no Parquet at all")
    (tmp_path / "cut").write_bytes((tmp_path / "one [1]%20.parquet").read_bytes()[:-4] + b"\xff\xff\xff\x7fPAR1")
    names = ("one [1]%20.parquet", "empty", "text", "cut", "missing")
    found = dict(stored_schemas([f"file:{tmp_path}/{name}" for name in names]))
    assert found == {f"file:{tmp_path}/one [1]%20.parquet": COLUMNS}
    assert list(stored_schemas(["hdfs://host/a.parquet"])) == []


def test_an_end_that_is_longer_than_what_is_read_at_first(tmp_path):
    names = [f"a rather long name of a column {number}" for number in range(3000)]
    pq.write_table(pa.table({name: pa.array([1], pa.int8()) for name in names}), tmp_path / "wide")
    ((_, schema),) = stored_schemas([f"file:{tmp_path}/wide"])
    assert schema.names == names
    assert parquet_shape(LocalStore(tmp_path), "wide") == (names, 1)


def test_times_of_96_bits_are_told_as_they_are_read(tmp_path):
    inner = pa.struct([("at", pa.timestamp("ns")), ("number", pa.int64())])
    table = pa.table({"t": pa.array([1], pa.timestamp("ns")), "s": pa.array([{"at": 1, "number": 1}], inner)})
    pq.write_table(table, tmp_path / "old", use_deprecated_int96_timestamps=True)
    ((_, schema),) = stored_schemas([f"file:{tmp_path}/old"])
    assert schema.field("t").type == pa.timestamp("us")
    assert schema.field("s").type == pa.struct([("at", pa.timestamp("us")), ("number", pa.int64())])
