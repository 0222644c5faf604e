"""What is paid with cards, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_card_payments = Ingest(
    name="ingest_card_payments",
    source=Files("landing/card_payments"),
    columns={
        "payment_id": "STRING",
        "card": "STRING",
        "country": "STRING",
        "amount": "DECIMAL(10, 2)",
        "paid_at": "TIMESTAMP",
    },
    event_time="paid_at",
    event_id="payment_id",
    rules=(NotNull("card"), NotNull("country"), NotNull("amount"), Between("amount", min=0)),
    sink=Sink("bronze.card_payments"),
    trigger_interval="10 seconds",
    description="One row for each payment with a card.",
    owner="bank",
    column_descriptions={
        "payment_id": "Number of the payment; the same if it is sent twice.",
        "card": "The card, by a number that is not its own.",
        "country": "Where it was paid, ISO 3166 code.",
        "amount": "What was paid, EUR.",
        "paid_at": "When it was, UTC.",
    },
)
