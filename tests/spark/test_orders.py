"""Real orders, from files to rankings: `make verify DATA=folder`."""

from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.spec import Aggregate, Files, Ingest, Pipeline, Sink, Table, TopN, Tumbling, Watermark
from tests.support import lakes
from tests.support.outside import data_file, run, write_files

pytestmark = pytest.mark.outside_data


def test_the_daily_top_ten_products_equal_duckdbs(spark: SparkSession, tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(
        f"""
        CREATE TABLE sold AS SELECT order_id, order_item_id, product_id, price::DECIMAL(10, 2) AS price,
            order_purchase_timestamp::TIMESTAMP AS purchased_at
        FROM read_csv('{data_file("olist_orders.csv")}') AS orders
            JOIN read_csv('{data_file("olist_order_items.csv")}') AS items USING (order_id)
        """
    )
    lines = connection.execute(
        """
        SELECT json_object('order_id', order_id, 'order_item_id', order_item_id, 'product_id', product_id,
            'price', price::VARCHAR, 'purchased_at', strftime(purchased_at, '%Y-%m-%dT%H:%M:%SZ'))
        FROM sold ORDER BY purchased_at, order_id, order_item_id
        """
    ).fetchall()
    batch = 1000
    files = ["\n".join(line for (line,) in lines[i : i + batch]).encode() for i in range(0, len(lines), batch)]
    write_files(tmp_path / "landing", files, "json")
    ingest = Ingest(
        name="ingest_sold",
        source=Files(str(tmp_path / "landing"), max_files_per_trigger=1),
        columns={
            "order_id": "STRING",
            "order_item_id": "INT",
            "product_id": "STRING",
            "price": "DECIMAL(10, 2)",
            "purchased_at": "TIMESTAMP",
        },
        event_time="purchased_at",
        sink=Sink("bronze.sold"),
    )
    final, live = (
        Pipeline(
            name=f"top_{mode}",
            source=Table("bronze.sold", max_files_per_trigger=1),
            event_time="purchased_at",
            watermark=Watermark(delay="1 hour"),
            steps=(
                Aggregate(
                    window=Tumbling("1 day"),
                    by=("product_id",),
                    measures={"units": "count(*)", "revenue": "sum(price)"},
                ),
                TopN(10, order_by="units DESC, revenue DESC, product_id"),
            ),
            sink=Sink(f"gold.top_{mode}", mode=mode),
        )
        for mode in ("append", "update")
    )
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    run(spark, lake, [ingest, final, live])

    expected = connection.execute(
        """
        WITH daily AS (
            SELECT date_trunc('day', purchased_at)::TIMESTAMPTZ AS day, product_id, count(*) AS units,
                sum(price) AS revenue
            FROM sold GROUP BY ALL
        )
        SELECT epoch_ms(day),
            row_number() OVER (PARTITION BY day ORDER BY units DESC, revenue DESC, product_id) AS rank,
            product_id, units, revenue
        FROM daily QUALIFY rank <= 10 ORDER BY ALL
        """
    ).fetchall()
    for pipeline in (final, live):
        found = lakes.rows(lake, pipeline.sink.table)
        ranked = [(lakes.ms(r["window_start"]), r["rank"], r["product_id"], r["units"], r["revenue"]) for r in found]
        assert sorted(ranked) == expected
        lakes.assert_balanced(lake, pipeline)
    # It takes days on which more than ten products were sold for the ranking to cut anything.
    assert max(rank for _, rank, *_ in expected) == 10
