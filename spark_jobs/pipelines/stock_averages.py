"""Each trade with what its share did in the five minutes up to it; and the average of every three trades in a row."""

from tidemark import Between, Conservation, Counting, NotNull, Pipeline, Sink, Sliding, Table, Watermark

TICKS = Table("bronze.ticks")
DELAY = Watermark(delay="2 minutes")

stock_averages = Pipeline(
    name="stock_averages",
    source=TICKS,
    event_time="traded_at",
    watermark=DELAY,
    steps=(
        Sliding(
            "5 minutes",
            by=("symbol",),
            measures={
                "average": "avg(price)",
                "lowest": "min(price)",
                "highest": "max(price)",
                "traded": "sum(volume)",
                "weighted": "sum(price * volume) / sum(volume)",
            },
        ),
    ),
    sink=Sink("gold.stock_averages"),
    expectations=(NotNull("symbol"), Between("lowest", min=0), Between("traded", min=1), Conservation()),
    trigger_interval="10 seconds",
    description="Each trade, with the prices of its share in the five minutes up to it.",
    owner="trading",
    column_descriptions={
        "symbol": "The share.",
        "price": "Of this trade, EUR.",
        "average": "Of the prices of the five minutes, EUR.",
        "lowest": "The lowest of them, EUR.",
        "highest": "The highest of them, EUR.",
        "traded": "Shares that were traded in the five minutes.",
        "weighted": "Average of the prices, each as often as shares were traded at it, EUR.",
    },
)

stock_triples = Pipeline(
    name="stock_triples",
    source=TICKS,
    event_time="traded_at",
    watermark=DELAY,
    steps=(Counting(3, by=("symbol",), measures={"average": "avg(price)", "first_traded_at": "min(traded_at)"}),),
    sink=Sink("gold.stock_triples"),
    expectations=(NotNull("symbol"), Between("average", min=0), Conservation()),
    trigger_interval="10 seconds",
    description="The average of each three trades of a share in a row.",
    owner="trading",
    column_descriptions={
        "symbol": "The share.",
        "traded_at": "Time of the third trade, UTC.",
        "average": "Of the three prices, EUR.",
        "first_traded_at": "Time of the first trade, UTC.",
    },
)
