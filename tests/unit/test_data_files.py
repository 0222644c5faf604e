"""A data file that is gone is told by the monitor and by every command that needs it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.cli import run_reporting_errors
from spark_jobs.control.monitoring import data_files, monitor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import open_epoch
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.tables import files
from spark_jobs.lake.tables.opening import open_table
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_ingest, write
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOLD = "gold.hourly_sales"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def commit(lake: Lake, table: str = GOLD, number: int = 0, *, by: str = "hourly_sales") -> Path:
    """One file with one row; its path."""
    before = set(paths(lake, table)) if number else set()
    row = {"product_id": [f"p{number}"], "__events": pa.array([1], pa.int64())}
    write(lake, table, row, stamp=a_stamp(number, pipeline=by, rows=1, ledger=a_batch(1, rows=1)))
    (new,) = set(paths(lake, table)) - before
    return new


def paths(lake: Lake, table: str = GOLD) -> list[Path]:
    return [Path(uri.removeprefix("file://")) for uri in open_table(lake, table).file_uris()]


class Watch:
    """A monitor that looks once a minute, and what it has told: (pipeline, whether it began, what it says)."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.at = lake, NOW
        self.told: list[tuple[str, bool, str]] = []

    def look(self) -> None:
        self.at += timedelta(minutes=1)
        seen = monitor.look(self.lake, now=self.at)
        monitor.mark_reported(self.lake, seen)
        self.told += [(c.pipeline, c.began, c.message) for c in seen.changes if c.kind == "data-file-missing"]


def test_a_missing_newest_file_is_told_once_until_it_is_back(lake: Lake) -> None:
    deploy(lake, [a_pipeline()])
    kept, lost = commit(lake), commit(lake, number=1)
    watch = Watch(lake)
    watch.look()
    content = lost.read_bytes()
    lost.unlink()
    watch.look()
    watch.look()
    ((pipeline, began, message),) = watch.told
    assert (pipeline, began) == ("hourly_sales", True)
    assert f"table {GOLD}, version 1: 1 data file is gone: {lost.name}" in message
    assert "`tidemark reset hourly_sales --empty-tables`" in message
    assert kept.name not in message
    lost.write_bytes(content)
    watch.look()
    assert [began for _, began, _ in watch.told] == [True, False]


def test_every_file_has_its_turn_with_a_bounded_number_of_requests_a_look(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "NEWEST", 2)
    monkeypatch.setattr(data_files, "BY_TURNS", 3)
    deploy(lake, [a_pipeline()])
    asked: list[str] = []
    is_there = files._is_there
    monkeypatch.setattr(files, "_is_there", lambda lake, path: asked.append(Path(path).name) or is_there(lake, path))
    known = [commit(lake, number=number) for number in range(10)]
    watch = Watch(lake)
    rounds = []
    for _ in range(6):
        asked.clear()
        watch.look()
        rounds.append(list(asked))
    assert all(len(each) <= 2 + 3 for each in rounds)
    assert {name for each in rounds[:3] for name in each} == {path.name for path in known}

    known[0].unlink()
    known[1].unlink()
    for _ in range(6):
        watch.look()
    assert watch.told, "each has had its turn twice"
    assert [began for _, began, _ in watch.told] == [True], "and is told while others have theirs"
    watch.look()
    report = monitor.look(lake, now=watch.at).reports[0]
    assert f"2 data files are gone: {', '.join(sorted([known[0].name, known[1].name]))}" in "".join(report.breaches)


def test_a_file_that_the_table_does_not_name_any_more_is_none_of_it(lake: Lake) -> None:
    deploy(lake, [a_pipeline()])
    old = [commit(lake), commit(lake, number=1)]
    watch = Watch(lake)
    watch.look()
    open_table(lake, GOLD).optimize.compact()
    for path in old:
        path.unlink()
    watch.look()
    assert watch.told == []


def test_bronze_is_watched_for_its_readers_where_no_ingest_is_deployed(lake: Lake) -> None:
    deploy(lake, [a_pipeline()])
    commit(lake, "bronze.sales", by="ingest_sales").unlink()
    watch = Watch(lake)
    watch.look()
    assert [(pipeline, began) for pipeline, began, _ in watch.told] == [("hourly_sales", True)]
    deploy(lake, [an_ingest()])
    watch.look()
    assert [(pipeline, began) for pipeline, began, _ in watch.told[1:]] == [
        ("ingest_sales", True),
        ("hourly_sales", False),
    ]


def test_a_reset_that_empties_the_table_clears_it(lake: Lake) -> None:
    deploy(lake, [a_pipeline()])
    open_epoch(lake, a_pipeline())
    commit(lake).unlink()
    watch = Watch(lake)
    watch.look()
    reset(lake, a_pipeline(), empty_tables=True)
    watch.look()
    assert [began for _, began, _ in watch.told] == [True, False]


@pytest.mark.parametrize(
    "command",
    [
        ["ledger", "{file}"],
        ["sql", "SELECT count(*) FROM gold.hourly_sales"],
        ["late", "{file}"],
        ["tables"],
    ],
)
def test_a_command_that_needs_it_names_the_table_and_the_file(
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    definition = a_pipeline()
    open_epoch(lake, definition)
    late = {
        "_event_id": ["e"],
        "sold_at": pa.array([NOW], pa.timestamp("us", "UTC")),
        "missed_windows": [[{"window_start": NOW}]],
        "partly_late": [False],
        "late_by_ms": [1],
        "_epoch": [1],
        "_batch_id": [1],
    }
    write(lake, f"{GOLD}__late", late)
    commit(lake)
    table = f"{GOLD}__late" if command[0] == "late" else GOLD
    lost = paths(lake, table)[0]
    lost.unlink()
    file = tmp_path / "mine.py"
    file.write_text(f"from tidemark import Pipeline\nmine = Pipeline.model_validate_json({definition.to_json()!r})\n")
    arguments = [part.format(file=file) for part in command]
    monkeypatch.setattr(sys, "argv", ["tidemark", *arguments, "--lake", lake.uri])
    assert run_reporting_errors() == 75
    told = capsys.readouterr().err
    assert f"table {table}, version 0: 1 data file is gone: {lost.name}" in told
    assert "docs/operate/runbook.md#data-file-missing" in told
    assert "Traceback" not in told
