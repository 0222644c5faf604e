"""Window cases of other engines: `make verify CASES=folder`."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.cases.case import read
from tests.cases.differences import BUILT
from tests.cases.running import run_case


@pytest.mark.outside_data
def test_the_cases_of_other_engines_end_as_they_say_or_differ_for_a_named_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = os.environ.get("TIDEMARK_CASES")
    if not folder:
        pytest.fail("TIDEMARK_CASES is not set: run `make verify DATA=folder CASES=folder`")
    cases = [found for found in read(Path(folder) / "windows.json") if found.kind in BUILT]
    assert cases
    problems = {}
    for number, found in enumerate(cases):
        try:
            run_case(spark, Lake(str(tmp_path / str(number))).ensure_exists(), found)
        except AssertionError as error:
            problems[found.id] = str(error)
    assert problems == {}
