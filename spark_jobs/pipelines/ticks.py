"""Trades of shares, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_ticks = Ingest(
    name="ingest_ticks",
    source=Files("landing/ticks"),
    columns={"symbol": "STRING", "price": "DECIMAL(10, 2)", "volume": "INT", "traded_at": "TIMESTAMP"},
    event_time="traded_at",
    rules=(
        NotNull("symbol"),
        NotNull("price"),
        Between("price", min=0),
        NotNull("volume"),
        Between("volume", min=1),
    ),
    sink=Sink("bronze.ticks"),
    trigger_interval="10 seconds",
    description="One row for each trade of a share.",
    owner="trading",
    column_descriptions={
        "symbol": "The share.",
        "price": "Of one share, EUR.",
        "volume": "How many shares were traded.",
        "traded_at": "When they were, UTC.",
    },
)
