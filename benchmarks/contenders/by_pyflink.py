"""Files to bronze to windows in PyFlink's SQL: `python by_pyflink.py <folder>`.

One statement set in streaming mode, so that the files are read once, with two parallel tasks. It writes Parquet files,
exactly once: they appear with a checkpoint. What cannot be read is dropped. Its environment has PyFlink, not Tidemark.
"""

import os
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

DELAY = "INTERVAL '2' DAY"
"""Flink's readers take the files of a folder in any order. With the two minutes of the others it drops most of what it
reads as late; with this delay nothing is, and all windows close when the input ends."""

SETTINGS = {
    "parallelism.default": "2",
    # A run ends with the checkpoint after its last row: a longer interval would be waited for.
    "execution.checkpointing.interval": "2 s",
    "restart-strategy.type": "none",
    "table.local-time-zone": "UTC",
}

# A row without event time stops a job: it gets one, and is dropped behind the watermark.
SALES = f"""
CREATE TEMPORARY TABLE sales (
    sale_id STRING,
    product_id STRING,
    quantity INT,
    unit_price DECIMAL(10, 2),
    sold_at TIMESTAMP_LTZ(3),
    source_file STRING NOT NULL METADATA FROM 'file.path',
    event_time AS COALESCE(sold_at, TO_TIMESTAMP_LTZ(0, 3)),
    WATERMARK FOR event_time AS event_time - {DELAY}
) WITH (
    'connector' = 'filesystem',
    'path' = '{{folder}}/landing/sales',
    'format' = 'json',
    'json.ignore-parse-errors' = 'true',
    'json.timestamp-format.standard' = 'ISO-8601'
)"""

VALID = """
CREATE TEMPORARY VIEW valid AS
SELECT * FROM sales
WHERE product_id IS NOT NULL AND quantity >= 1 AND unit_price >= 0 AND sold_at IS NOT NULL"""

BRONZE = """
CREATE TEMPORARY TABLE bronze (
    sale_id STRING,
    product_id STRING,
    quantity INT,
    unit_price DECIMAL(10, 2),
    sold_at TIMESTAMP_LTZ(3),
    ingest_time TIMESTAMP_LTZ(3),
    source_file STRING
) WITH ('connector' = 'filesystem', 'path' = '{folder}/bronze/sales', 'format' = 'parquet')"""

HOURLY = """
CREATE TEMPORARY TABLE hourly (
    window_start TIMESTAMP(3),
    window_end TIMESTAMP(3),
    product_id STRING,
    units BIGINT,
    revenue DECIMAL(38, 2),
    events BIGINT
) WITH ('connector' = 'filesystem', 'path' = '{folder}/gold/hourly', 'format' = 'parquet')"""

FILL_BRONZE = """
INSERT INTO bronze
SELECT sale_id, product_id, quantity, unit_price, sold_at, CURRENT_TIMESTAMP, source_file FROM valid"""

FILL_HOURLY = """
INSERT INTO hourly
SELECT window_start, window_end, product_id, SUM(CAST(quantity AS BIGINT)), SUM(quantity * unit_price), COUNT(*)
FROM TABLE(TUMBLE(TABLE valid, DESCRIPTOR(event_time), INTERVAL '1' HOUR))
GROUP BY window_start, window_end, product_id"""


def main(folder: str) -> None:
    """Runs it until the files are read."""
    os.environ["FLINK_LOG_DIR"] = f"{folder}/log"
    configuration = Configuration()
    for key, value in SETTINGS.items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(settings)
    for statement in (SALES, VALID, BRONZE, HOURLY):
        tables.execute_sql(statement.format(folder=Path(folder).absolute().as_uri()))
    both = tables.create_statement_set()
    both.add_insert_sql(FILL_BRONZE)
    both.add_insert_sql(FILL_HOURLY)
    both.execute().wait()


if __name__ == "__main__":
    main(sys.argv[1])
