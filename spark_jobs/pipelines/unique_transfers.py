"""Transfers without those that were told twice, as a table that pipelines read.

`unique_transfers` remembers ids for a day. What it lets through becomes events again, so that a second step with state
can go on from it: a chain.
"""

from tidemark import Conservation, Deduplicate, Ingest, NotNull, Pipeline, Results, Sink, Table, Watermark

COLUMNS = {
    "transfer_id": "Number of the transfer.",
    "account": "Whose balance changes.",
    "amount": "What comes, or leaves where it is negative, EUR.",
    "booked_at": "When it counts, UTC.",
}

unique_transfers = Pipeline(
    name="unique_transfers",
    source=Table("bronze.transfers"),
    event_time="booked_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(Deduplicate("transfer_id", within="1 day"),),
    sink=Sink("silver.unique_transfers"),
    expectations=(NotNull("transfer_id"), Conservation()),
    trigger_interval="10 seconds",
    description="Transfers, each of them once: without those that were told again within a day.",
    owner="bank",
    column_descriptions=COLUMNS,
)

ingest_unique_transfers = Ingest(
    name="ingest_unique_transfers",
    # Money that was counted is not taken back in silence: a row that changes stops the chain until somebody decides.
    source=Results("silver.unique_transfers", revised="refuse"),
    columns={"transfer_id": "STRING", "account": "STRING", "amount": "DECIMAL(10, 2)", "booked_at": "TIMESTAMP"},
    event_time="booked_at",
    sink=Sink("bronze.unique_transfers"),
    trigger_interval="10 seconds",
    description="One event for each transfer, however often it was told.",
    owner="bank",
    column_descriptions=COLUMNS,
)
