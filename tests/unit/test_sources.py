"""Each kind of source answers what is asked of any of them, and has a part wherever kinds are told apart."""

from typing import get_args

import pytest

from spark_jobs.control.desired.contracts import SAMPLES
from spark_jobs.engine.sources import SOURCES
from spark_jobs.job.lag import LAGS
from spark_jobs.operations.restore.sources import READ_AGAIN
from spark_jobs.spec import Files, Ingest, Kafka, Pipeline, Results

FIELDS_OF_FILES = {"kind", "path", "format", "header", "delimiter", "max_files_per_trigger", "max_bytes_per_trigger"}
FIELDS_OF_KAFKA = {"kind", "topic", "bootstrap_servers", "starting_offsets", "max_offsets_per_trigger"}

FIELDS_OF_RESULTS = {"kind", "table", "revised", "max_files_per_trigger", "max_bytes_per_trigger"}


def kinds(definition):
    return {source.model_fields["kind"].default for source in get_args(definition.model_fields["source"].annotation)}


def test_each_kind_of_source_has_a_part_wherever_kinds_are_told_apart():
    assert SOURCES.keys() == SAMPLES.keys() == READ_AGAIN.keys() == kinds(Ingest)
    assert LAGS.keys() == kinds(Ingest) | kinds(Pipeline)


@pytest.mark.parametrize(
    ("source", "answers"),
    [
        (Files("in"), ("json", False, False, False, ",", "in")),
        (Files("s3a://b/in", format="parquet"), ("parquet", False, True, False, ",", None)),
        (Files("/in", format="csv", delimiter=";"), ("csv", True, False, True, ";", None)),
        (Files("in/*", format="csv", header=False), ("csv", True, False, False, ",", "in/*")),
        (Kafka("sales"), ("json", False, False, False, ",", None)),
        (Results("gold.hourly"), ("parquet", False, True, False, ",", None)),
    ],
    ids=lambda value: getattr(value, "described", None),
)
def test_each_source_answers_the_same_questions(source, answers):
    asked = source.format, source.is_csv, source.is_parquet, source.has_header, source.delimiter, source.path_in_lake
    assert asked == answers


def test_what_a_source_answers_is_no_part_of_what_is_kept_of_it():
    assert Files("in").model_dump().keys() == FIELDS_OF_FILES
    assert Kafka("sales").model_dump().keys() == FIELDS_OF_KAFKA
    assert Results("gold.hourly").model_dump().keys() == FIELDS_OF_RESULTS


def test_options_of_a_source_are_for_another_place_of_its_kind():
    files = Files("in", format="csv", delimiter=";", max_files_per_trigger=3)
    assert Files("other", **files.options_for("files")) == files.model_copy(update={"path": "other"})
    assert files.options_for("kafka") == {}
    topic = Kafka("sales", bootstrap_servers="a:1", starting_offsets="latest")
    assert topic.options_for("kafka").keys() == FIELDS_OF_KAFKA - {"kind", "topic", "bootstrap_servers"}
