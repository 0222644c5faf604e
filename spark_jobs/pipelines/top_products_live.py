"""The ten products with the most units sold so far this hour, for a live dashboard: revised until the hour is final."""

from tidemark import (
    Aggregate,
    Between,
    Conservation,
    Late,
    NotNull,
    Pipeline,
    Sink,
    Table,
    TopN,
    Tumbling,
    Unique,
    Watermark,
)

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
    expectations=(
        NotNull("product_id"),
        Between("units", min=1),
        Between("revenue", min=0),
        Between("rank", min=1, max=10),
        Unique("window_start", "product_id"),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="The ten products of each hour with the most units sold so far. Rows change until the hour is final.",
    owner="shop",
    column_descriptions={"units": "Units sold in the hour so far.", "revenue": "Units times their prices, EUR."},
)
