"""Changes of the shop's catalogue, from JSON files; a row is the product as it is from then on."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_products = Ingest(
    name="ingest_products",
    source=Files("landing/products"),
    columns={
        "product_id": "STRING",
        "name": "STRING",
        "category": "STRING",
        "unit_price": "DECIMAL(10, 2)",
        "changed_at": "TIMESTAMP",
    },
    event_time="changed_at",
    rules=(NotNull("product_id"), Between("unit_price", min=0)),
    sink=Sink("bronze.products"),
    trigger_interval="10 seconds",
    description="One row for each change of the catalogue: the product as it is from then on.",
    owner="shop",
    column_descriptions={
        "product_id": "The product; one row for each of its changes.",
        "name": "As customers see it.",
        "category": "Group of the catalogue.",
        "unit_price": "Price of one unit, EUR.",
        "changed_at": "From when on this holds, UTC.",
    },
)
