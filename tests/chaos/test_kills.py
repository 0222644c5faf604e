"""A real kill at a seeded moment, with the ingest in the same driver; `make chaos` makes any number."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.pipelines import registry
from tests.chaos import kills
from tests.support import lakes
from tests.support.calm import CalmRun

# Each lake with other kinds of tables: live rankings and first events, windows and what is looked up.
WORK = {
    "folder": kills.Work.of("ingest_sales", "top_products_live", "first_sales"),
    "minio": kills.Work.of("ingest_sales", "top_products", "sales_by_category"),
}


# On a folder: tests/control/test_supervised.py::test_killed_drivers_and_a_killed_supervisor_have_changed_no_table, on
# MinIO: tests/control/test_zombies.py::test_a_driver_that_is_killed_and_one_that_wakes_change_nothing. An ingest that
# fails within a batch: tests/spark/test_failures.py::test_an_ingest_that_fails_goes_on_as_if_it_had_not
@pytest.mark.long
@pytest.mark.parametrize("kind", WORK)
def test_tables_after_kills_equal_those_of_a_calm_run(
    kind: str, tmp_path: Path, calm: CalmRun, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    work, environment = WORK[kind], {}
    lake = request.getfixturevalue("lake")
    if kind == "minio":
        server, bucket = request.getfixturevalue("minio")
        lake, environment = Lake(f"s3a://{bucket}/lake"), server.environment()
    own = Lake(str(tmp_path / "calm")).ensure_exists()

    def calm_by(batches: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """What a run that nobody disturbs makes of so many files a batch; no driver starts for it."""

        def run_ingest(name: str) -> None:
            lakes.run_all(spark, own, [registry()[name]], close=False)

        kills.arrive_by(batches, calm.landing, own, run_ingest)
        lakes.run_all(spark, own, work.definitions, close=True)
        return kills.contents(own, work)

    kills.put_input(lake, calm.landing, work)
    expected = kills.contents(calm.lake, work)
    result = kills.run_killed(lake, environment, expected, seed=5, most_kills=1, work=work, calm_by=calm_by)

    assert [moment.split(":")[0] for moment in result.moments] == ["pipelines"]
    assert result.differing == []
