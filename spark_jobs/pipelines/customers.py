"""Changes of the shop's customers, from JSON files; a row is the customer as known from then on."""

from spark_jobs.spec import Files, Ingest, NotNull, Sink

ingest_customers = Ingest(
    name="ingest_customers",
    source=Files("landing/customers"),
    columns={
        "customer_id": "STRING",
        "name": "STRING",
        "country": "STRING",
        "segment": "STRING",
        "changed_at": "TIMESTAMP",
    },
    event_time="changed_at",
    rules=(NotNull("customer_id"),),
    sink=Sink("bronze.customers"),
    personal=("name",),
    trigger_interval="10 seconds",
)
