"""Files to bronze to windows with Tidemark: `python by_tidemark.py <folder> <files a batch> <files a commit>`.

The windows read one commit of bronze a batch, which has so many files; with `apart` as a fourth argument when all of it
is written, else while it is.

The ingest is the registered one, but for the number of files a batch. `TIDEMARK_…` variables have the settings.
"""

import sys

from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.lake import Lake
from spark_jobs.pipelines.sales import ingest_sales
from spark_jobs.spark.session import build_session
from spark_jobs.spec import Aggregate, Files, Pipeline, Sink, Table, Tumbling, Watermark

HOURLY = Pipeline(
    name="hourly",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes"),
    steps=(
        Aggregate(
            window=Tumbling("1 hour"),
            by=("product_id",),
            measures={"units": "sum(quantity)", "revenue": "sum(quantity * unit_price)", "events": "count(*)"},
        ),
    ),
    sink=Sink("gold.hourly"),
)


def main(folder: str, files_a_batch: int, files_a_commit: int, *, apart: bool) -> None:
    """Runs it until the files are read; open windows stay open."""
    hourly = HOURLY.model_copy(update={"source": Table("bronze.sales", max_files_per_trigger=files_a_commit)})
    files = Files("landing/sales", max_files_per_trigger=files_a_batch)
    lake = Lake(folder).ensure_exists()
    spark = build_session(lake)
    ingest = ingest_sales.model_copy(update={"source": files})
    outcomes: list[Outcome] = []
    for together in ((ingest,), (hourly,)) if apart else ((ingest, hourly),):
        outcomes += Driver(spark, lake, together).run_until_caught_up(close=False).values()
    spark.stop()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), apart="apart" in sys.argv[4:])
