"""Per hour the ten products with the most units sold: final rows, written once the hour is over."""

from spark_jobs.spec import Aggregate, Late, Pipeline, Sink, Table, TopN, Tumbling, Watermark

top_products = Pipeline(
    name="top_products",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes", late=Late.SIDE_OUTPUT),
    steps=(
        Aggregate(
            window=Tumbling("1 hour"),
            by=("product_id",),
            measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)"},
        ),
        TopN(10, order_by="units DESC, product_id"),
    ),
    sink=Sink("gold.top_products"),
    trigger_interval="5 seconds",
)
