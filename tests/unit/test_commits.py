"""Commits of batches to real tables, without a JVM: what a table has got is held against what the batch holds."""

import pyarrow as pa
import pytest
from deltalake import Schema

from spark_jobs.commits.changes import Append
from spark_jobs.commits.writer import TableWriter
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.tables.opening import open_or_create, row_count
from tests.support.builders import a_lake, a_stamp

TABLE = "gold.hourly_sales"
ROWS = pa.table({"product_id": ["a", "b"], "units": [1, 2]})


@pytest.fixture
def writer(tmp_path):
    lake = a_lake(tmp_path)
    open_or_create(lake, TABLE, Schema.from_arrow(ROWS.schema))
    return TableWriter(lake, TABLE, "result", "hourly_sales", query_id="query", epoch=1)


def test_a_commit_of_as_many_rows_as_planned_is_there_once(writer):
    change, stamp = Append(ROWS, 2, ROWS.nbytes), a_stamp(7, rows=2)
    assert writer.commit(change, stamp) == writer.commit(change, stamp) == stamp
    assert row_count(open_or_create(writer.lake, TABLE, Schema.from_arrow(ROWS.schema))) == 2


@pytest.mark.parametrize("planned", [1, 3])
def test_a_commit_of_fewer_or_more_rows_than_planned_stops_the_stream(writer, planned):
    said = rf"{TABLE}: batch 7 of `hourly_sales` holds {planned} rows, but 2 were written\. The stream has stopped"
    change, stamp = Append(ROWS, 2, ROWS.nbytes), a_stamp(7, rows=planned)
    with pytest.raises(LedgerError, match=said):
        writer.commit(change, stamp)
    # Nor does the next start take it for what the batch holds, whichever way it looks.
    again = TableWriter(writer.lake, TABLE, "result", "hourly_sales", query_id="query", epoch=1)
    for look in (lambda: again.find(stamp), lambda: again.commit(change, stamp)):
        with pytest.raises(LedgerError, match=said):
            look()
