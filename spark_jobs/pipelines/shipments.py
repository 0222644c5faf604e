"""Parcels of orders, from JSON files; some are sent weeks after the order."""

from tidemark import Files, Ingest, NotNull, Sink

ingest_shipments = Ingest(
    name="ingest_shipments",
    source=Files("landing/shipments"),
    columns={"shipment_id": "STRING", "order_id": "STRING", "carrier": "STRING", "shipped_at": "TIMESTAMP"},
    event_time="shipped_at",
    event_id="shipment_id",
    rules=(NotNull("order_id"), NotNull("carrier")),
    sink=Sink("bronze.shipments"),
    trigger_interval="10 seconds",
    description="One row for each parcel that is sent; an order may have several.",
    owner="shop",
    column_descriptions={
        "shipment_id": "Number of the parcel; the same if it is told twice.",
        "order_id": "Of which order; see bronze.orders.",
        "carrier": "Who brings it.",
        "shipped_at": "When it left, UTC.",
    },
)
