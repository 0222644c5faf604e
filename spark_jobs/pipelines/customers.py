"""Changes of the shop's customers, from JSON files; a row is the customer as known from then on."""

from tidemark import Files, Ingest, NotNull, Sink

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
    description="One row for each change of a customer: the customer as known from then on.",
    owner="customer care",
    column_descriptions={
        "customer_id": "The customer; one row for each of its changes.",
        "name": "First and last name.",
        "country": "Where the customer lives, as two letters.",
        "segment": "Group that marketing has given the customer.",
        "changed_at": "From when on this is known, UTC.",
    },
)
