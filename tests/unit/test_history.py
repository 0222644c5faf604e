"""The history of real tables: stamps in commits, and the ledger that rides in them."""

import json
import re

import pytest

from spark_jobs.lake.commit_records import history
from spark_jobs.lake.commit_records.stamps import Stamp, decode
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.store.formats import FormatError
from tests.support.builders import a_batch, a_lake, a_stamp, write


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


class TestStamps:
    def test_a_stamp_is_read_back_from_the_commit(self):
        stamp = a_stamp(3, rows=5, ledger=a_batch(7, reasons={"not_null(a)": 1}, sources={"s": '{"o": 1}'}))
        assert decode({"userMetadata": stamp.encode()}) == stamp

    def test_it_is_json_that_others_can_read(self):
        said = json.loads(a_stamp(3, ledger=a_batch(7)).encode())
        assert (said["format"], said["batch_id"], said["ledger"]["terms"]["read"]) == (1, 3, 7)

    def test_what_it_does_not_have_is_not_written(self):
        assert "ledger" not in json.loads(a_stamp().encode())

    @pytest.mark.parametrize(
        "commit",
        [
            {},
            {"userMetadata": None},
            {"userMetadata": "nightly compaction"},
            {"userMetadata": '{"job": 5}'},
            {"userMetadata": 'said "tidemark" once'},
            {"userMetadata": a_stamp().encode()[:-5]},
        ],
    )
    def test_what_somebody_else_wrote_is_no_stamp(self, commit):
        assert decode(commit) is None

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ('{"tidemark": 1}', "tidemark: "),
            (a_stamp().encode().replace('"format":1', '"format":2'), "expected format 1 to 1, got 2"),
            (a_stamp().encode().replace('"batch_id":0', '"batch_id":"x"'), "batch_id: "),
        ],
    )
    def test_a_stamp_that_cannot_be_read_is_not_taken_for_somebody_elses(self, said, why):
        with pytest.raises(FormatError, match=re.escape(why)):
            decode({"userMetadata": said})


class TestCommits:
    def test_a_commit_is_read_from_its_own_file(self, lake):
        write(lake, "gold.a", {"n": [1]}, stamp=a_stamp(0))
        write(lake, "gold.a", {"n": [1]}, stamp=a_stamp(1))
        assert decode(history.commit_at(lake, "gold.a", 1)) == a_stamp(1)
        assert decode(history.commit_at(lake, "gold.a", 0)) == a_stamp(0)

    def test_a_version_that_is_not_there_yet_has_no_commit(self, lake):
        write(lake, "gold.a", {"n": [1]})
        assert history.latest_version(lake, "gold.a") == 0
        assert history.commit_at(lake, "gold.a", 1) is None
        assert history.commit_at(lake, "gold.none", 0) is None

    def test_a_missing_table_has_no_latest_version(self, lake):
        with pytest.raises(MissingTableError):
            history.latest_version(lake, "gold.none")


class TestFindStamp:
    def test_the_newest_that_fits_is_found_behind_commits_of_others(self, lake):
        for batch_id in range(3):
            write(lake, "gold.a", {"n": [1]}, stamp=a_stamp(batch_id, next_seq=batch_id * 10))
        write(lake, "gold.a", {"n": [1]}, stamp="nightly compaction")
        write(lake, "gold.a", {"n": [1]})
        assert history.find_stamp(lake, "gold.a", lambda stamp: True) == a_stamp(2, next_seq=20)
        assert history.find_stamp(lake, "gold.a", lambda stamp: stamp.batch_id < 1) == a_stamp(0, next_seq=0)

    def test_without_one_there_is_none(self, lake):
        write(lake, "gold.a", {"n": [1]}, stamp=a_stamp())
        assert history.find_stamp(lake, "gold.a", lambda stamp: stamp.epoch == 2) is None


class TestLedgerRows:
    def stamped(self, lake, *stamps: Stamp):
        for stamp in stamps:
            write(lake, "gold.a", {"n": [1]}, stamp=stamp)

    def test_batches_come_in_their_order_with_their_rows(self, lake):
        self.stamped(lake, *(a_stamp(batch_id, ledger=a_batch(batch_id + 5)) for batch_id in range(11)))
        rows = history.ledger_rows(lake, "gold.a", "hourly_sales", 1)
        assert rows == [(batch_id, a_batch(batch_id + 5)) for batch_id in range(11)]

    def test_only_those_of_this_pipeline_and_epoch(self, lake):
        self.stamped(
            lake,
            a_stamp(0, ledger=a_batch(1)),
            a_stamp(1, ledger=a_batch(2), epoch=2),
            a_stamp(2, ledger=a_batch(3), pipeline="backfill"),
        )
        assert history.ledger_rows(lake, "gold.a", "hourly_sales", 1) == [(0, a_batch(1))]
        assert history.ledger_rows(lake, "gold.a", "hourly_sales", 2) == [(1, a_batch(2))]
        assert history.ledger_rows(lake, "gold.a", "hourly_sales", 3) == []

    def test_commits_without_a_ledger_have_no_row(self, lake):
        self.stamped(lake, a_stamp(0, role="late", rows=3), a_stamp(0, ledger=a_batch(4)))
        assert history.ledger_rows(lake, "gold.a", "hourly_sales", 1) == [(0, a_batch(4))]
