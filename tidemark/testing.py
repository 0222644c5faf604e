"""For the tests of pipeline files: `from tidemark.testing import PipelineTest, ProcessorTest`.

docs/guides/processors.md has an example of each.
"""

from spark_jobs.testing import PipelineTest, ProcessorTest

__all__ = ["PipelineTest", "ProcessorTest"]
