"""Lakes of every form that Tidemark has written are read, and their streams go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.spec import definition_from_json
from tests import archive
from tests.support import lakes

FORMS = range(1, archive.NEWEST + 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_ledger_of_every_pipeline_of_an_archived_lake_balances(tmp_path: Path, form: int) -> None:
    lake = archive.open_archive(form, tmp_path)
    for pipeline in archive.pipelines():
        epoch = current_epoch(lake, pipeline.name)
        assert epoch is not None
        # What ran then is read by today's code, and is the same value.
        assert definition_from_json(epoch.definition) == pipeline
        lakes.assert_balanced(lake, pipeline)


@pytest.mark.parametrize("form", FORMS)
def test_the_streams_of_an_archived_lake_go_on(spark: SparkSession, tmp_path: Path, form: int) -> None:
    lake = archive.open_archive(form, tmp_path)
    before = {each.name: len(lakes.ledger(lake, each)) for each in archive.pipelines()}
    archive.fill(lake, 3)
    lakes.run_all(spark, lake, archive.pipelines(), close=False)
    for pipeline in archive.pipelines():
        entries = lakes.ledger(lake, pipeline)
        assert len(entries) > before[pipeline.name]
        assert sum(entry["read"] for _, entry in entries) == 16 + (8 if pipeline.name == "paid" else 0)
        lakes.assert_balanced(lake, pipeline)
