"""Sales of the shop, from JSON files."""

from tidemark import Between, Conservation, Files, Ingest, NotNull, Sink, Volume

ingest_sales = Ingest(
    name="ingest_sales",
    source=Files("landing/sales", max_files_per_trigger=20),
    columns={
        "sale_id": "STRING",
        "product_id": "STRING",
        "quantity": "INT",
        "unit_price": "DECIMAL(10, 2)",
        "sold_at": "TIMESTAMP",
    },
    event_time="sold_at",
    event_id="sale_id",
    rules=(NotNull("product_id"), Between("quantity", min=1), Between("unit_price", min=0)),
    sink=Sink("bronze.sales"),
    expectations=(Volume("1 hour", min_share=0.2, severity="warn"), Conservation()),
    trigger_interval="10 seconds",
    description="One row for each sale of the shop, as its tills sent it.",
    owner="shop",
    column_descriptions={
        "sale_id": "Number of the sale; the same if a till sends it twice.",
        "product_id": "The product that was sold; see silver.products.",
        "quantity": "Units sold.",
        "unit_price": "Price of one unit, EUR.",
        "sold_at": "When the till took the money, UTC.",
    },
)
