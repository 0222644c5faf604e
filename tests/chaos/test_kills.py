"""A handful of real kills on each kind of lake; `make chaos` makes any number."""

from pathlib import Path

import pytest

from tests.chaos import kills
from tests.services.minio import minio_binary


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_tables_after_kills_equal_those_of_a_calm_run(kind: str, tmp_path: Path) -> None:
    if kind == "minio" and minio_binary() is None:
        pytest.skip("no minio binary: `make setup-tests` builds one where Go is installed")
    kills.simulate(tmp_path / "landing", files=6, rows_per_file=300)
    with kills.lakes_of(kind, tmp_path / kind) as (lake_named, environment):
        calm, killed = lake_named("calm"), lake_named("killed")
        for lake in (calm, killed):
            kills.put_input(lake, tmp_path / "landing")
        expected = kills.run_calm(calm, environment)
        result = kills.run_killed(killed, environment, expected, seed=5, most_kills=4)

    assert result.kills >= 1
    assert result.differing == []
    for table in ("gold.top_products", "gold.top_products__late", "bronze.sales__quarantine"):
        assert expected[table], f"{table} has rows that could be lost or doubled"
