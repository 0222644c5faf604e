"""Units and revenue by category over the last 15 minutes, every 5: categories are looked up, and change."""

from tidemark import Aggregate, Between, Enrich, Hopping, Pipeline, Sink, Table, Unique, Watermark

rolling_sales = Pipeline(
    name="rolling_sales",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes"),
    steps=(
        Enrich("silver.products", on=("product_id",), columns={"category": "category"}),
        Aggregate(
            window=Hopping("15 minutes", "5 minutes"),
            by=("category",),
            measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)"},
        ),
    ),
    sink=Sink("gold.rolling_sales"),
    expectations=(Between("units", min=1), Between("revenue", min=0), Unique("window_start", "category")),
    trigger_interval="10 seconds",
    description="Units and revenue of each category over the last 15 minutes, every 5.",
    owner="shop",
    column_descriptions={
        "units": "Units sold in the 15 minutes.",
        "revenue": "Units times their prices, EUR.",
    },
)
