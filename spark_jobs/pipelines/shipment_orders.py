"""Shipments with the order that they belong to, as it was last before they left; however long ago, up to 30 days.

There is no window in which both must lie: the newest version of each order is kept, and found by its number. It is an
`AsOf` and no `Join` with `keep`, which would give a further row for each order that changes after its shipment, and
whose rows are final only 30 days later.
"""

from tidemark import AsOf, Conservation, NotNull, Pipeline, Sink, Table, Watermark

ORDERS = Table(
    "bronze.orders",
    select={
        "order_id": "order_id",
        "customer_id": "customer_id",
        "product_id": "product_id",
        "amount": "amount",
        "ordered_at": "ordered_at",
    },
)

shipment_orders = Pipeline(
    name="shipment_orders",
    source=Table("bronze.shipments"),
    event_time="shipped_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(AsOf(ORDERS, on=("order_id",), event_time="ordered_at", keep="30 days"),),
    sink=Sink("gold.shipment_orders"),
    expectations=(NotNull("shipment_id"), NotNull("carrier"), Conservation()),
    trigger_interval="10 seconds",
    description="Shipments with the latest version of their order; without one where there was none in 30 days.",
    owner="shop",
    column_descriptions={
        "shipment_id": "Number of the parcel.",
        "carrier": "Who brings it.",
        "shipped_at": "When it left, UTC.",
        "customer_id": "Who ordered; null: the order is not known.",
        "amount": "What is to be paid, EUR; may be missing, 0 or negative.",
        "ordered_at": "When it was ordered, UTC.",
    },
)
