"""`user_activity` by the wrong clock, and what that is worth: clicks by when they arrived, not by when they happened.

By ingest time no event is ever late, and no window waits. But a window then has what arrived in it, whenever it
happened: after an outage all of the outage is in one window. `misplaced` says how much, and `ingest_time_difference`
where it is missing. `(by ingest time) - (by event time)` of a user and window is the one less the other.
"""

from tidemark import Aggregate, Between, Conservation, Pipeline, Sink, Table, Tumbling, Unique, Watermark

CLICKS = Table("bronze.clicks", select={"user_id": "user_id", "clicked_at": "clicked_at", "arrived_at": "_ingest_time"})
OTHER_WINDOW = "unix_seconds(clicked_at) div 300 <> unix_seconds(arrived_at) div 300"

ingest_time_activity = Pipeline(
    name="ingest_time_activity",
    source=CLICKS,
    event_time="arrived_at",
    # Clicks arrive in the order in which they arrive.
    watermark=Watermark(delay="0 seconds"),
    steps=(
        Aggregate(
            window=Tumbling("5 minutes"),
            by=("user_id",),
            measures={
                "events": "count(*)",
                "misplaced": f"count_if({OTHER_WINDOW})",
                "seconds_behind": "max(unix_seconds(arrived_at) - unix_seconds(clicked_at))",
            },
        ),
    ),
    sink=Sink("gold.ingest_time_activity"),
    expectations=(Between("events", min=1), Unique("window_start", "user_id"), Conservation()),
    trigger_interval="10 seconds",
    description="Clicks of each user in five minutes of arrival, and how many of them happened in others.",
    owner="web",
    column_descriptions={
        "user_id": "Who clicked.",
        "events": "Number of clicks that arrived in the window.",
        "misplaced": "How many of them happened in another window.",
        "seconds_behind": "How long the one that took longest was on its way, seconds.",
    },
)

ingest_time_difference = Pipeline(
    name="ingest_time_difference",
    source=CLICKS,
    event_time="clicked_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(
        Aggregate(
            window=Tumbling("5 minutes"),
            by=("user_id",),
            measures={"events": "count(*)", "misplaced": f"count_if({OTHER_WINDOW})"},
        ),
    ),
    sink=Sink("gold.ingest_time_difference"),
    expectations=(Between("events", min=1), Unique("window_start", "user_id"), Conservation()),
    trigger_interval="10 seconds",
    description="Clicks of each user in five minutes, and how many of them ingest time counts in others.",
    owner="web",
    column_descriptions={
        "user_id": "Who clicked.",
        "events": "Number of clicks that happened in the window.",
        "misplaced": "How many of them arrived in another window.",
    },
)
