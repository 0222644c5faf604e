"""How much an operation may have to read is known from the logs of its tables."""

import math
from pathlib import Path

from spark_jobs.console.operation import bytes_of
from tests.support.builders import a_pipeline, an_ingest, write


def on_disk(lake, *tables):
    files = (file for table in tables for file in Path(lake.table_path(table)).glob("*.parquet"))
    return sum(file.stat().st_size for file in files)


def test_of_all_tables_that_are_read_or_written_the_bytes_are_counted_once(lake):
    for table in ("bronze.sales", "gold.hourly_sales", "gold.others"):
        write(lake, table, {"product_id": ["p", "q"], "quantity": [1, 2]})
    reader, writer = a_pipeline(), an_ingest()
    assert reader.sink.table == "gold.hourly_sales"
    assert bytes_of(lake, [reader, writer]) == on_disk(lake, "bronze.sales", "gold.hourly_sales")
    assert bytes_of(lake, []) == 0


def test_of_a_table_that_cannot_be_read_they_are_not_known(lake):
    write(lake, "bronze.sales", {"product_id": ["p"]})
    Path(lake.table_path("bronze.sales"), "_delta_log", f"{0:020d}.json").write_text("{")
    assert bytes_of(lake, [an_ingest()]) == math.inf
