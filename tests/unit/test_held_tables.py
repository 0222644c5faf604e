"""A table that is held open is the one that a look at the lake would find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableFeatures

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import MissingTableError, UnsupportedTableError
from spark_jobs.lake.tables import held as held_tables
from spark_jobs.lake.tables.held import HeldTable
from spark_jobs.lake.tables.opening import open_table

TABLE = "gold.totals"


def append(lake: Lake, *values: int) -> None:
    write_deltalake(lake.table_uri(TABLE), pa.table({"v": pa.array(values, pa.int64())}), mode="append")


def values(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["v"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    append(lake, 1)
    return lake


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a table was opened from its whole log."""
    found: list[int] = []
    monkeypatch.setattr(held_tables, "open_table", lambda *of, **how: found.append(1) or open_table(*of, **how))
    return found


def test_what_other_writers_commit_is_seen_and_the_log_is_read_once(lake: Lake, opened: list[int]) -> None:
    held = HeldTable(lake, TABLE, to_write=True)
    assert values(held.newest()) == [1]
    for value in (2, 3):
        append(lake, value)
        assert values(held.newest()) == [*range(1, value + 1)]
    # Its own commits, too.
    write_deltalake(held.newest(), pa.table({"v": pa.array([4], pa.int64())}), mode="append")
    assert (values(held.newest()), held.newest().version()) == ([1, 2, 3, 4], 3)
    assert len(opened) == 1


@pytest.mark.parametrize("commits", [1, 3])
def test_a_table_that_was_made_anew_is_not_taken_for_the_one_before(lake: Lake, commits: int) -> None:
    held = HeldTable(lake, TABLE, to_write=True)
    append(lake, 2)
    held.newest()
    shutil.rmtree(lake.table_path(TABLE))
    for value in range(commits):
        append(lake, 10 + value)
    assert values(held.newest()) == [10 + value for value in range(commits)]
    assert held.newest().version() == commits - 1


def test_an_older_copy_of_the_log_that_has_gone_on_is_another_log(lake: Lake) -> None:
    held = HeldTable(lake, TABLE, to_write=True)
    held.newest()
    append(lake, 2)
    assert values(held.newest()) == [1, 2]
    for path in Path(lake.table_path(TABLE), "_delta_log").glob("*1.json"):
        path.unlink()
    append(lake, 12)
    append(lake, 13)
    assert values(held.newest()) == [1, 12, 13]


def test_a_table_of_many_files_is_not_held_in_memory(
    lake: Lake, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tables, "_FEW_FILES", 1)
    append(lake, 2)
    held = HeldTable(lake, TABLE)
    assert [values(held.newest()) for _ in range(2)] == [[1, 2], [1, 2]]
    assert len(opened) == 2


def test_a_table_that_is_gone_is_missing(lake: Lake) -> None:
    held = HeldTable(lake, TABLE)
    held.newest()
    shutil.rmtree(lake.table_path(TABLE))
    with pytest.raises(MissingTableError, match=TABLE):
        held.newest()


def test_a_log_without_its_oldest_commits_is_read_from_its_checkpoint(lake: Lake) -> None:
    held = HeldTable(lake, TABLE)
    held.newest()
    append(lake, 2)
    DeltaTable(lake.table_uri(TABLE)).create_checkpoint()
    append(lake, 3)
    for version in (0, 1):
        Path(lake.table_path(TABLE), "_delta_log", f"{version:020d}.json").unlink()
    assert values(held.newest()) == [1, 2, 3]


def test_what_is_held_of_a_log_does_not_grow_for_ever(lake: Lake, opened: list[int]) -> None:
    DeltaTable(lake.table_uri(TABLE)).alter.set_table_properties({"delta.checkpointInterval": "3"})
    held = HeldTable(lake, TABLE)
    for value in range(2, 9):
        held.newest()
        append(lake, value)
    assert values(held.newest()) == [*range(1, 9)]
    assert len(opened) == 3


def test_a_table_that_comes_to_need_what_is_not_implemented_is_refused(lake: Lake) -> None:
    to_write, to_read = HeldTable(lake, TABLE, to_write=True), HeldTable(lake, TABLE)
    to_write.newest(), to_read.newest()
    DeltaTable(lake.table_uri(TABLE)).alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    )
    with pytest.raises(UnsupportedTableError, match="rowTracking"):
        to_write.newest()
    assert values(to_read.newest()) == [1]
