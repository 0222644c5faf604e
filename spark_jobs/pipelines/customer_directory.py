"""Each customer as known now: the newest change. Other pipelines look it up."""

from tidemark import Aggregate, NotNull, Pipeline, Sink, Table, Unique

customer_directory = Pipeline(
    name="customer_directory",
    source=Table("bronze.customers"),
    steps=(
        Aggregate(
            by=("customer_id",),
            measures={
                "name": "max_by(name, changed_at)",
                "country": "max_by(country, changed_at)",
                "segment": "max_by(segment, changed_at)",
                "changed_at": "max(changed_at)",
            },
        ),
    ),
    sink=Sink("silver.customers", mode="update"),
    expectations=(NotNull("customer_id"), Unique("customer_id")),
    personal=("name",),
    trigger_interval="10 seconds",
    description="Each customer as known now; other pipelines look it up.",
    owner="customer care",
)
