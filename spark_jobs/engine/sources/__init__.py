"""The sources of an ingest: what `IngestQuery` asks of any of them, and one module for each kind."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_jobs.engine.sources.base import Source
from spark_jobs.engine.sources.files import FilesSource
from spark_jobs.engine.sources.kafka import KafkaSource
from spark_jobs.engine.sources.results import ResultsSource
from spark_jobs.lake import Lake
from spark_jobs.spec import Ingest

SOURCES: Mapping[str, type[Source]] = {"files": FilesSource, "kafka": KafkaSource, "results": ResultsSource}
"""Kind of a source -> how the engine reads it."""


def source_of(spark: SparkSession, lake: Lake, definition: Ingest) -> Source:
    """The source of an ingest, as the engine reads it.

    Args:
        spark: the session of its query.
        lake: where.
        definition: of the ingest.
    """
    return SOURCES[definition.source.kind](spark, lake, definition)
