"""A handful of real kills on each kind of lake; `make chaos` makes any number."""

from functools import partial
from pathlib import Path

import pytest

from spark_jobs.lake import Lake
from tests.calm import CalmRun
from tests.chaos import kills
from tests.services.minio import minio_binary
from tests.services.process import leave_out


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_tables_after_kills_equal_those_of_a_calm_run(kind: str, tmp_path: Path, calm: CalmRun) -> None:
    if kind == "minio" and minio_binary() is None:
        leave_out("no minio binary: `make setup-tests` builds one where Go is installed")
    with kills.lakes_of(kind, tmp_path / kind) as (lake_named, environment):
        lake = lake_named("killed")
        kills.put_input(lake, calm.landing)
        own = Lake(str(tmp_path / "calm")).made()
        calm_by = partial(kills.run_calm_by, landing=calm.landing, lake=own, environment={})
        expected = kills.contents(calm.lake)
        result = kills.run_killed(lake, environment, expected, seed=5, most_kills=2, calm_by=calm_by)

    assert {moment.split(":")[0] for moment in result.moments} == {"ingest", "pipelines"}
    assert result.differing == []
