"""Tables that need what is not implemented are left alone and named; nobody sees their rows as NULLs."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType
from typer.testing import CliRunner

from spark_jobs.cli.application import app
from spark_jobs.commits.tables import create_table
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.appends import append_rows
from spark_jobs.lake.tables.inventory import summaries
from spark_jobs.lake.tables.opening import exists, open_table, table_names
from spark_jobs.lake.tables.query import QueryError
from spark_jobs.operations.maintain.execute import Maintenance
from spark_jobs.quality.profiling import profile
from tests.support.builders import a_lake, write
from tests.support.foreign import BY_NAME, OLDER, write_by_hand
from tests.unit.test_maintenance import HASTY

FOREIGN = "gold.foreign"
MAPPED = r"columnMapping \(delta\.columnMapping\.mode=name\)"


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


def listed(*features: str, reader: bool = False) -> dict:
    lists = {"readerFeatures": [*features]} if reader else {}
    return {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7, "writerFeatures": [*features], **lists}


def content(lake) -> dict[str, bytes]:
    folder = Path(lake.table_path(FOREIGN))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestColumnMappingOfTheOlderProtocol:
    """Reader 2, writer 5: there are no lists of features, which is all that `deltalake` looks at."""

    @pytest.fixture(autouse=True)
    def table(self, lake):
        write_by_hand(lake, FOREIGN)

    def test_maintenance_changes_nothing_of_it_and_names_it(self, lake):
        before = content(lake)
        what = Maintenance(lake, Retention(), HASTY)
        (table,) = what.tables()
        done = what.execute(table)
        assert content(lake) == before
        assert done.problem is not None
        assert "columnMapping (delta.columnMapping.mode=name)" in done.problem
        assert done.problem in (what.plan(table).left_alone or "")

    def test_the_command_maintains_the_others_and_ends_with_1(self, lake):
        write(lake, "gold.mine", {"n": [1]})
        ended = CliRunner().invoke(app, ["maintain", "--lake", lake.uri])
        assert ended.exit_code == 1
        assert "gold.mine: " in ended.output
        assert "gold.foreign: expected nothing but what" in ended.output

    def test_a_query_names_it_instead_of_showing_nulls(self, lake):
        write(lake, "gold.mine", {"n": [1]})
        assert query.run(lake, "SELECT n FROM gold.mine")[1] == [(1,)]
        with pytest.raises(QueryError, match=rf"Left out: gold\.foreign \(.*{MAPPED}"):
            query.run(lake, "SELECT n FROM gold.foreign")

    def test_a_profile_of_it_is_refused(self, lake):
        with pytest.raises(TidemarkError, match=MAPPED):
            profile(lake, FOREIGN, event_time=None)

    def test_nothing_is_appended_to_it(self, lake):
        before = content(lake)
        with pytest.raises(TidemarkError, match=MAPPED):
            append_rows(lake, FOREIGN, pa.table({"n": [1]}))
        assert content(lake) == before

    def test_no_stream_begins_to_write_it(self, lake):
        with pytest.raises(TidemarkError, match=MAPPED):
            create_table(lake, FOREIGN, StructType().add("n", LongType()))

    def test_the_list_of_tables_has_it_with_the_reason(self, lake):
        assert exists(lake, FOREIGN)
        assert table_names(lake) == (FOREIGN,)
        (summary,) = summaries(lake, {})
        assert "columnMapping" in (summary.unreadable or "")


@pytest.mark.parametrize(
    ("protocol", "settings", "needed"),
    [
        (OLDER, BY_NAME | {"delta.columnMapping.mode": "id"}, "columnMapping (delta.columnMapping.mode=id)"),
        # A mode that the protocol does not allow: somebody has written it, and relies on it.
        ({"minReaderVersion": 1, "minWriterVersion": 2}, BY_NAME, "columnMapping (delta.columnMapping.mode=name)"),
        ({"minReaderVersion": 2, "minWriterVersion": 7, "writerFeatures": ["columnMapping"]}, BY_NAME, "columnMapping"),
        (listed("columnMapping", reader=True), BY_NAME, "columnMapping"),
        (listed("deletionVectors", reader=True), {}, "deletionVectors"),
        (listed("typeWidening", reader=True), {}, "typeWidening"),
        (listed("v2Checkpoint", "vacuumProtocolCheck", reader=True), {}, "v2Checkpoint, vacuumProtocolCheck"),
        # The library does not open it at all.
        (listed("somethingNew", reader=True), {}, "somethingNew"),
    ],
)
def test_what_a_reader_must_know_is_asked_for(lake, protocol, settings, needed):
    write_by_hand(lake, FOREIGN, protocol=protocol, settings=settings)
    with pytest.raises(TidemarkError, match=r"table gold\.foreign: expected nothing but") as refused:
        open_table(lake, FOREIGN)
    assert needed in str(refused.value)
    assert refused.value.exit_code == 1


@pytest.mark.parametrize(
    ("protocol", "needed"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 6}, "identityColumns (writer version 6)"),
        (listed("rowTracking", "domainMetadata"), "domainMetadata, rowTracking"),
        (listed("inCommitTimestamp"), "inCommitTimestamp"),
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "writer version 8"),
    ],
)
def test_what_only_writers_must_know_leaves_it_readable(lake, protocol, needed):
    write_by_hand(lake, FOREIGN, protocol=protocol, settings={}, prefix="")
    assert query.run(lake, f"SELECT sum(n) FROM {FOREIGN}")[1] == [(45,)]
    before, what = content(lake), Maintenance(lake, Retention(), HASTY)
    (table,) = what.tables()
    assert needed in (what.execute(table).problem or "")
    assert content(lake) == before


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 1, "minWriterVersion": 2},
        {"minReaderVersion": 1, "minWriterVersion": 4},
        # It allows column mapping, and the table does not use it.
        OLDER,
        listed("timestampNtz", reader=True),
        listed("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
    ],
)
def test_what_is_implemented_is_read_and_maintained(lake, protocol):
    write_by_hand(lake, FOREIGN, protocol=protocol, settings={}, prefix="")
    what = Maintenance(lake, Retention(), HASTY)
    done = what.execute(next(iter(what.tables([FOREIGN]))))
    assert (done.problem, done.files_before, done.files_after) == (None, 9, 1)
    assert query.run(lake, f"SELECT count(*), sum(n), max(name) FROM {FOREIGN}")[1] == [(9, 45, "row 9")]
