"""Each product as it is now: its newest change. Other pipelines look it up."""

from tidemark import Aggregate, Between, NotNull, Pipeline, Sink, Table, Unique

product_catalogue = Pipeline(
    name="product_catalogue",
    source=Table("bronze.products"),
    steps=(
        Aggregate(
            by=("product_id",),
            measures={
                "name": "max_by(name, changed_at)",
                "category": "max_by(category, changed_at)",
                "unit_price": "max_by(unit_price, changed_at)",
                "changed_at": "max(changed_at)",
            },
        ),
    ),
    sink=Sink("silver.products", mode="update"),
    expectations=(NotNull("product_id"), Between("unit_price", min=0), Unique("product_id")),
    trigger_interval="10 seconds",
    description="Each product as it is now; other pipelines look it up.",
    owner="shop",
)
