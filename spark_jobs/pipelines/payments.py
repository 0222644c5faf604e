"""What guests of the café paid, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_payments = Ingest(
    name="ingest_payments",
    source=Files("landing/payments"),
    columns={
        "payment_id": "STRING",
        "guest_id": "STRING",
        "visit_id": "STRING",
        "amount": "DECIMAL(10, 2)",
        "paid_at": "TIMESTAMP",
    },
    event_time="paid_at",
    event_id="payment_id",
    rules=(NotNull("guest_id"), NotNull("amount"), Between("amount", min=0)),
    sink=Sink("bronze.payments"),
    trigger_interval="10 seconds",
    description="One row for each payment of a guest of the café.",
    owner="café",
    column_descriptions={
        "payment_id": "Number of the payment; the same if it is sent twice.",
        "guest_id": "Who paid.",
        "visit_id": "For which visit; see bronze.visits.",
        "amount": "What was paid, EUR.",
        "paid_at": "When it was paid, UTC.",
    },
)
