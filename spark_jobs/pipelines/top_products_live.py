"""The ten products with the most units sold so far this hour, for a live dashboard: revised until the hour is final."""

from spark_jobs.spec import Aggregate, Late, Pipeline, Sink, Table, TopN, Tumbling, Watermark

top_products_live = Pipeline(
    name="top_products_live",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes", grace="10 minutes", late=Late.UPDATE),
    steps=(
        Aggregate(
            window=Tumbling("1 hour"),
            by=("product_id",),
            measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)"},
        ),
        TopN(10, order_by="units DESC, product_id"),
    ),
    sink=Sink("gold.top_products_live", mode="update"),
    trigger_interval="5 seconds",
)
