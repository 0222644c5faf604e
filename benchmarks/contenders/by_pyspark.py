"""Files to bronze to windows in plain PySpark: `python by_pyspark.py <folder> <files a batch> <files a commit>`.

Two streaming queries, one after the other: the second takes what is there when it starts, and ends. What cannot be read
and what is late is dropped. The session has what Delta's and Spark's guides for streams tell to set, or, with `tuned`
as a fourth argument, all that Tidemark sets, but for its own extension of Spark.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.spark.settings import jars, spark_settings

COLUMNS = "sale_id STRING, product_id STRING, quantity INT, unit_price DECIMAL(10, 2), sold_at TIMESTAMP"
VALID = "_unread IS NULL AND product_id IS NOT NULL AND quantity >= 1 AND unit_price >= 0 AND sold_at IS NOT NULL"
DELTA = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"}
"""What any session has that reads and writes Delta tables."""


def options_of_guides(settings: Settings) -> dict[str, str]:
    """Delta, state in RocksDB, and as many cores and partitions and as much memory as Tidemark has."""
    return {
        **DELTA,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.extraClassPath": os.pathsep.join(jars()),
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def main(folder: str, files_a_batch: int, files_a_commit: int, *, tuned: bool) -> None:
    """Runs both until they have caught up."""
    lake = Lake(folder).ensure_exists()
    settings = Settings()
    builder = SparkSession.builder.master(settings.master)
    options = {**spark_settings(lake, settings), **DELTA} if tuned else options_of_guides(settings)
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    lines = spark.readStream.schema(f"{COLUMNS}, _unread STRING").option("columnNameOfCorruptRecord", "_unread")
    sales = lines.option("maxFilesPerTrigger", files_a_batch).json(lake.path("landing", "sales")).where(VALID)
    bronze = sales.drop("_unread").withColumns(
        {"ingest_time": F.current_timestamp(), "source_file": F.col("_metadata.file_path")}
    )
    write(lake, bronze, "bronze.sales")
    written = spark.readStream.format("delta").option("startingVersion", 0)
    hourly = (
        written.option("maxFilesPerTrigger", files_a_commit)
        .load(lake.table_path("bronze.sales"))
        .withWatermark("sold_at", "2 minutes")
        .groupBy(F.window("sold_at", "1 hour").alias("w"), "product_id")
        .agg(
            F.sum("quantity").alias("units"),
            F.expr("sum(quantity * unit_price)").alias("revenue"),
            F.count("*").alias("events"),
        )
        .selectExpr("w.start AS window_start", "w.end AS window_end", "product_id", "units", "revenue", "events")
    )
    write(lake, hourly, "gold.hourly")
    spark.stop()


def write(lake: Lake, rows: DataFrame, table: str) -> None:
    """Appends all that there is to read now."""
    stream = rows.writeStream.format("delta").option("checkpointLocation", lake.path("_checkpoints", table))
    stream.trigger(availableNow=True).start(lake.table_path(table)).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), tuned="tuned" in sys.argv[4:])
