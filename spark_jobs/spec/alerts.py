"""When a person should look at a running pipeline."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from spark_jobs.spec.base import Spec
from spark_jobs.spec.durations import PositiveDuration

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Alerts(Spec):
    """Limits of a pipeline's health. Each has a default; `None` turns one off. Meanings: docs/operate/runbook.md.

    They may change under a running checkpoint.

    Attributes:
        max_silence: without finishing a batch, or finding that there is nothing to read.
        max_watermark_lag: clock less the published watermark, that is by how much final results are behind; also grows
            where a source sends old events or none at all.
        max_rows_behind: rows (Kafka: messages; files: files) that the source has and the pipeline has not read.
        max_time_behind: age of the oldest thing in the source that has not been read.
        max_processing_latency: from an event's commit in bronze to the commit of the result that counts it.
        max_batch_duration: of one batch.
        backpressure_after: how long batches may take longer than the trigger's interval, or more may arrive than is
            processed.
        max_checkpoint_duration: what Spark spends on its checkpoint in one batch.
        max_checkpoint_bytes: of all files of the checkpoint.
        max_state_rows: groups in Spark's state.
        max_state_bytes: memory of Spark's state, as Spark reports it.
        max_late_share: late events among those read in the last ten minutes.
        max_quarantine_share: rows set aside among those read in the last ten minutes.
        max_unknown_share: events of an ingest with a field of JSON that no column takes, among those of the last ten
            minutes.
        max_null_share: events of an ingest without a value in a column that held values before, among those of the last
            ten minutes.
        max_restarts: of the driver or of the pipeline in it, within an hour.
    """

    max_silence: PositiveDuration | None = timedelta(minutes=10)
    max_watermark_lag: PositiveDuration | None = timedelta(days=2)
    max_rows_behind: Count | None = 1_000_000
    max_time_behind: PositiveDuration | None = timedelta(minutes=15)
    max_processing_latency: PositiveDuration | None = timedelta(minutes=10)
    max_batch_duration: PositiveDuration | None = timedelta(minutes=5)
    backpressure_after: PositiveDuration | None = timedelta(minutes=5)
    max_checkpoint_duration: PositiveDuration | None = timedelta(minutes=1)
    max_checkpoint_bytes: Count | None = 10 * 2**30
    max_state_rows: Count | None = 100_000_000
    max_state_bytes: Count | None = 10 * 2**30
    max_late_share: Share | None = 0.1
    max_quarantine_share: Share | None = 0.1
    max_unknown_share: Share | None = 0.1
    max_null_share: Share | None = 0.99
    max_restarts: Count | None = 2
