"""Money that comes to accounts or leaves them, from JSON files."""

from tidemark import Files, Ingest, NotNull, Sink

ingest_transfers = Ingest(
    name="ingest_transfers",
    source=Files("landing/transfers"),
    columns={"transfer_id": "STRING", "account": "STRING", "amount": "DECIMAL(10, 2)", "booked_at": "TIMESTAMP"},
    event_time="booked_at",
    event_id="transfer_id",
    rules=(NotNull("account"), NotNull("amount")),
    sink=Sink("bronze.transfers"),
    trigger_interval="10 seconds",
    description="One row for each amount that comes to an account or leaves it.",
    owner="bank",
    column_descriptions={
        "transfer_id": "Number of the transfer; the same if it is sent twice.",
        "account": "Whose balance changes.",
        "amount": "What comes, or leaves where it is negative, EUR.",
        "booked_at": "When it counts, UTC.",
    },
)
