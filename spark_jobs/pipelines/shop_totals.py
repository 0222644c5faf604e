"""One row for the whole stream of sales: how many, how much, and the newest."""

from tidemark import Aggregate, Between, Conservation, NotNull, Pipeline, Sink, Table

shop_totals = Pipeline(
    name="shop_totals",
    source=Table("bronze.sales"),
    steps=(
        Aggregate(
            measures={
                "sales": "count(*)",
                "units": "sum(quantity)",
                "revenue": "sum(quantity * unit_price)",
                "newest_sale": "max(sold_at)",
            }
        ),
    ),
    sink=Sink("gold.shop_totals", mode="update"),
    expectations=(NotNull("newest_sale"), Between("sales", min=1), Conservation()),
    trigger_interval="10 seconds",
    description="One row: all sales of the shop since its stream began.",
    owner="shop",
    column_descriptions={
        "sales": "Number of sales.",
        "units": "Units sold.",
        "revenue": "Units times their prices, EUR.",
        "newest_sale": "Time of the newest sale, UTC.",
    },
)
