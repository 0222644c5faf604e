"""What guests of the café paid, from JSON files."""

from spark_jobs.spec import Between, Files, Ingest, NotNull, Sink

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
)
