"""How far a pipeline is behind its source, from the source alone."""

import json
import os
from datetime import UTC, datetime

import pytest

from spark_jobs.job.lag import LagMeter
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import next_version
from tests.support.builders import a_lake, a_pipeline, an_ingest, write


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def offset(version, index=-100):
    return json.dumps({"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": version, "index": index})


def test_a_stream_goes_on_with_the_version_that_it_has_not_begun():
    assert next_version(offset(3)) == 3
    assert next_version(offset(3, index=0)) == 4


def test_a_source_is_known_by_the_folder_of_its_table():
    assert table_read("DeltaSource[s3a://b/lake/bronze/sales]", a_pipeline()) == "bronze.sales"
    assert table_read("DeltaSource[file:/lake/bronze/more_sales]", a_pipeline()) is None


def test_a_reader_is_behind_by_the_rows_of_the_commits_still_unread(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    for count in (5, 3, 4):
        write(lake, "bronze.sales", {"quantity": list(range(count))}, mode="append")
    meter = LagMeter(lake, a_pipeline(), "_checkpoints/x/epoch-1", clock=clock)
    source = f"DeltaSource[file:{tmp_path}/bronze/sales]"

    before = datetime.now(UTC)
    behind = meter.measure({source: offset(1)})
    assert behind.rows == 7
    assert behind.oldest <= before

    # No oftener than every ten seconds.
    assert meter.measure({source: offset(3)}).rows == 7
    clock.now += 10
    caught_up = meter.measure({source: offset(3)})
    assert (caught_up.rows, caught_up.oldest) == (0, None)


def test_a_source_that_fails_is_asked_no_oftener_than_one_that_answers(tmp_path):
    lake, clock = a_lake(tmp_path), Clock()
    write(lake, "bronze.sales", {"quantity": [1, 2, 3]})
    meter = LagMeter(lake, a_pipeline(), "_checkpoints/x/epoch-1", clock=clock)
    read = {f"DeltaSource[file:{tmp_path}/bronze/sales]": offset(0)}
    assert meter.measure(read).rows == 3

    (tmp_path / "bronze/sales/_delta_log/00000000000000000000.json").write_text("{")
    for _ in range(2):
        clock.now += 10
        with pytest.raises(json.JSONDecodeError):
            meter.measure(read)
        clock.now += 9
        assert meter.measure(read).rows == 3
        clock.now -= 9


def test_an_ingest_is_behind_by_the_files_after_the_newest_planned_one(tmp_path):
    lake = a_lake(tmp_path)
    folder = tmp_path / "landing/sales"
    folder.mkdir(parents=True)
    for number in range(5):
        path = folder / f"{number}.json"
        path.write_text("{}")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    (folder / "_hidden.json").write_text("{}")
    log = tmp_path / "_checkpoints/ingest_sales/epoch-1/sources/0/1"
    log.parent.mkdir(parents=True)
    log.write_text('v1\n{"path":"file:///2.json","timestamp":1700000002000,"batchId":1}')

    behind = LagMeter(lake, an_ingest(), "_checkpoints/ingest_sales/epoch-1").measure({"files": '{"logOffset":1}'})
    assert behind.rows == 2
    assert behind.oldest == datetime.fromtimestamp(1_700_000_003, UTC)
