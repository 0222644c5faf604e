"""For the tests of pipeline files: events in, watermark moved, timers fired; rows, late events, state, ledger out."""

from spark_jobs.testing.pipelines import PipelineTest
from spark_jobs.testing.processors import ProcessorTest

__all__ = ["PipelineTest", "ProcessorTest"]
