"""Looking inside checkpoints: each kind of damage is found and named, and the state is what the events say."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.cli.application import app
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.copying import copy_batch
from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe, differences, summaries
from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch
from spark_jobs.lake.checkpoints.verifying import Fault, verify
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.operations.state.execute import StateRows, read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.spark.state import open_pairs
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    DefinitionError,
    Files,
    Ingest,
    Pipeline,
    Session,
    Sink,
    Table,
    Tumbling,
    Watermark,
)
from tests.support import lakes
from tests.support.clicks import MINUTE, START, copy_of

pytestmark = pytest.mark.usefixtures("divided")

_CLICKS = [
    [("a", 2, 0.0), ("b", 3, 1.0)],
    [("a", 5, 4.0), ("c", 7, 12.0)],
    [("b", 1, 14.0), ("a", 4, 21.0)],
    [("c", 9, 23.0), ("d", 6, 24.0)],
    [("a", 8, 27.0), ("b", 2, 31.0)],
]
"""Batches of key, value and minutes; each after the watermark that the ones before have moved."""
_DELAY, _SIZE = 3, 10


def ingest(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_clicks",
        source=Files(str(folder), max_files_per_trigger=1),
        columns={"k": "STRING", "v": "BIGINT", "t": "TIMESTAMP"},
        event_time="t",
        max_future=timedelta(days=36500),
        sink=Sink("bronze.clicks"),
    )


def reading(name: str, step: Aggregate | Deduplicate, files: int = 2) -> Pipeline:
    return Pipeline(
        name=name,
        source=Table("bronze.clicks", max_files_per_trigger=files),
        event_time="t",
        watermark=Watermark(delay=f"{_DELAY} minutes"),
        steps=(step,),
        sink=Sink(f"gold.{name}"),
    )


MEASURES = {"clicks": "count(*)", "total": "sum(v)", "mean": "avg(v)", "again": "sum( v )", "least": "min(v)"}
WINDOWED = reading("windowed", Aggregate(window=Tumbling(f"{_SIZE} minutes"), by=("k",), measures=MEASURES), files=1)
VISITS = reading("visits", Aggregate(window=Session("5 minutes"), by=("k",), measures={"total": "sum(v)"}))
FIRSTS = reading("firsts", Deduplicate(keys=("k",), within="20 minutes"))


@pytest.fixture(scope="module")
def made(spark: SparkSession, divided: None, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with an ingest and three pipelines that have ended; copied, never changed."""
    folder = tmp_path_factory.mktemp("checkpoints")
    lake, landing = Lake(str(folder / "lake")).ensure_exists(), folder / "landing"
    landing.mkdir()
    changelogs = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    before = str(spark.conf.get(changelogs))
    try:
        # Without changelogs each batch leaves a snapshot at once, else Spark's maintenance does within a minute.
        spark.conf.set(changelogs, "false")
        _run(spark, lake, landing, range(3), (WINDOWED,))
    finally:
        spark.conf.set(changelogs, before)
    _run(spark, lake, landing, range(3, 5), (WINDOWED, VISITS, FIRSTS))
    return lake


def _run(spark: SparkSession, lake: Lake, landing: Path, numbers: range, pipelines: tuple[Pipeline, ...]) -> None:
    for number in numbers:
        lines = [json.dumps({"k": k, "v": v, "t": _at(minutes).isoformat()}) for k, v, minutes in _CLICKS[number]]
        (file := landing / f"{number}.json").write_text("\n".join(lines))
        # Files of one moment come in any order.
        os.utime(file, (1_790_000_000 + number,) * 2)
    for definition in (ingest(landing), *pipelines):
        lakes.run_all(spark, lake, [definition], close=False)


def _at(minutes: float) -> datetime:
    return lakes.at(START + round(minutes * MINUTE))


@pytest.fixture
def copied(made: Lake, tmp_path: Path) -> Lake:
    return copy_of(made, tmp_path / "copy")


def _faults(lake: Lake, name: str) -> list[Fault]:
    checkpoint = checkpoint_of(lake, name)
    return verify(checkpoint, begun_with(checkpoint.epoch))


# Damage: what is done to the folder of a checkpoint, and the file that is then to be named.


def _one(folder: Path, pattern: str) -> Path:
    """The newest file of a pattern, by its number."""
    return max(folder.glob(pattern), key=lambda path: int(re.split("[-_.]", path.name)[0]))


def _gone(pattern: str) -> Callable[[Path], Path]:
    def damage(folder: Path) -> Path:
        (path := _one(folder, pattern)).unlink()
        return path

    return damage


def _cut(pattern: str) -> Callable[[Path], Path]:
    def damage(folder: Path) -> Path:
        content = (path := _one(folder, pattern)).read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])
        return path

    return damage


def _from(source: str, target: str) -> Callable[[Path], Path]:
    """One file in the place of another: the right form, and not this query's, or not this batch's."""

    def damage(folder: Path) -> Path:
        path = _one(folder, target)
        shutil.copyfile(_one(folder.parents[1], source), path)
        return path

    return damage


def _metadata(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    def damage(folder: Path) -> Path:
        change(path := folder / "metadata")
        return path

    return damage


WINDOWED_DAMAGE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "metadata missing": (_metadata(lambda path: path.unlink()), "is missing"),
    "metadata cut": (_metadata(lambda path: path.write_text('{"id":"9')), "cut off"),
    "metadata of another": (_metadata(lambda path: path.write_text('{"id":"0-0"}')), "another query or epoch"),
    "offsets missing": (_gone("offsets/[0-9]*"), "is missing"),
    "offsets missing between": (_gone("offsets/1"), "is missing"),
    "offsets cut": (_cut("offsets/[0-9]*"), "cut off"),
    "offsets of another": (_from("firsts/epoch-1/offsets/0", "offsets/[0-9]*"), "query or epoch"),
    "offsets of an ingest": (_from("ingest_clicks/epoch-1/offsets/4", "offsets/4"), "query or epoch"),
    "commits missing": (_gone("commits/4"), "is missing"),
    "commits cut": (_cut("commits/[0-9]*"), "cut off"),
    "commits of another": (_from("firsts/epoch-1/commits/[0-9]*", "commits/[0-9]*"), "query or epoch"),
    "commits of a batch before": (_from("windowed/epoch-1/commits/1", "commits/4"), "query or epoch"),
    "changelog missing": (_gone("state/0/0/*.changelog"), "is missing"),
    "changelog missing between": (_gone("state/0/1/5_*.changelog"), "is missing"),
    "changelog cut": (_cut("state/0/0/*.changelog"), "cut off"),
    "changelog of another": (_from("firsts/epoch-1/state/0/0/3_*.changelog", "state/0/0/6_*"), "query or epoch"),
    "changelog of another part": (_from("windowed/epoch-1/state/0/1/7_*", "state/0/0/7_*"), "query or epoch"),
    "snapshot missing": (_gone("state/0/1/*.zip"), "is missing"),
    "snapshot cut": (_cut("state/0/1/*.zip"), "cut off"),
    "file of a snapshot missing": (_gone("state/0/0/SSTs/*.sst"), "is missing"),
    "file of a snapshot cut": (_cut("state/0/0/SSTs/*.sst"), "bytes"),
    "state metadata missing": (lambda folder: _gone_at(folder / "state/0/_metadata/metadata"), "is missing"),
    "state metadata cut": (lambda folder: _cut_at(folder / "state/0/_metadata/metadata"), "cut off"),
    "state metadata of another": (lambda folder: _operator_of(folder, "firsts"), "query or epoch"),
    "schema missing": (lambda folder: _gone_at(folder / "state/0/0/_metadata/schema"), "is missing"),
    "schema cut": (lambda folder: _cut_at(folder / "state/0/0/_metadata/schema"), "cut off"),
    "schema of another": (lambda folder: _other_schema(folder), "query or epoch"),
}
INGEST_DAMAGE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "entry missing": (_gone("sources/0/2"), "is missing"),
    "entry cut": (_cut("sources/0/4"), "cut off"),
    "entry of another": (_from("ingest_clicks/epoch-1/sources/0/1", "sources/0/3"), "query or epoch"),
}


def _gone_at(path: Path) -> Path:
    path.unlink()
    return path


def _cut_at(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-9])
    return path


def _operator_of(folder: Path, other: str) -> Path:
    path = folder / "state/0/_metadata/metadata"
    shutil.copyfile(folder.parents[1] / other / "epoch-1/state/0/_metadata/metadata", path)
    return path


def _other_schema(folder: Path) -> Path:
    path = folder / "state/0/0/_metadata/schema"
    # As long as before: the lengths in it stay right.
    path.write_bytes(path.read_bytes().replace(b'"name":"k"', b'"name":"z"'))
    return path


@pytest.mark.parametrize("name", ["ingest_clicks", "windowed", "visits", "firsts"])
def test_nothing_is_wrong_with_a_checkpoint_that_nobody_damaged(made: Lake, name: str) -> None:
    assert _faults(made, name) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("windowed", each) for each in WINDOWED_DAMAGE] + [("ingest_clicks", each) for each in INGEST_DAMAGE],
)
def test_each_kind_of_damage_is_found_with_its_file_and_a_remedy(copied: Lake, name: str, kind: str) -> None:
    damage, words = (WINDOWED_DAMAGE | INGEST_DAMAGE)[kind]
    folder = Path(copied.uri, "_checkpoints", name, "epoch-1")
    path = damage(folder).relative_to(folder).as_posix()
    found = {fault.path: fault for fault in _faults(copied, name)}
    assert path in found
    assert words in found[path].what
    assert f"tidemark reset {name}" in found[path].remedy or not found[path].stops


def test_a_batch_that_was_planned_and_has_not_ended_is_no_damage(copied: Lake) -> None:
    folder = Path(copied.uri, "_checkpoints/windowed/epoch-1")
    _one(folder, "commits/[0-9]*").unlink()
    assert _faults(copied, "windowed") == []


def test_a_checkpoint_that_is_gone_is_told_where_its_table_has_batches(copied: Lake) -> None:
    shutil.rmtree(Path(copied.uri, "_checkpoints/windowed/epoch-1"))
    (fault,) = _faults(copied, "windowed")
    assert "is gone" in fault.remedy


# What a checkpoint holds.


def test_a_description_tells_batches_watermark_and_state(made: Lake) -> None:
    found = describe(checkpoint_of(made, "windowed"))
    assert (found.epoch, found.planned, found.committed, found.batch) == (1, 6, 6, 6)
    assert found.watermark == _at(max(t for batch in _CLICKS for _, _, t in batch) - _DELAY)
    assert [offset.startswith("Delta table") for offset in found.offsets] == [True] * len(found.offsets)
    assert {(store.name, store.partition) for store in found.stores} == {("stateStoreSave", 0), ("stateStoreSave", 1)}
    assert all(store.newest_changelog == 7 and store.newest_snapshot == 4 for store in found.stores)
    of_ingest = describe(checkpoint_of(made, "ingest_clicks"))
    assert of_ingest.offsets == ("files: 5, up to entry 4 of their log",)
    assert [(each.pipeline, each.committed) for each in summaries(made)][1:3] == [("ingest_clicks", 4), ("visits", 3)]


def test_rows_without_a_snapshot_are_counted_from_changelogs(spark: SparkSession, made: Lake) -> None:
    found = describe(checkpoint_of(made, "visits"))
    assert sum(store.rows or 0 for store in found.stores) == len(_state(spark, made, "visits").rows)


def test_two_batches_differ_by_what_lies_between_them(made: Lake) -> None:
    checkpoint = checkpoint_of(made, "windowed")
    one, other = describe(checkpoint, at=5), describe(checkpoint, at=6)
    found = {what: values for what, *values in differences(one, other)}
    assert found["batch"] == ["5", "6"]
    assert "definition" not in found
    assert not list(differences(one, one))


def test_a_batch_that_is_not_kept_is_refused_with_those_that_are(made: Lake) -> None:
    with pytest.raises(MissingTableError, match="kept are: 0 to 6"):
        describe(checkpoint_of(made, "windowed"), at=99)


def test_what_is_shown_is_json_of_the_same(made: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["checkpoints", "show", "windowed", "--json", "--lake", made.uri])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["faults"]) == (6, [])


def test_a_fault_ends_the_command_with_one(copied: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    _gone("state/0/0/*.changelog")(Path(copied.uri, "_checkpoints/windowed/epoch-1"))
    with pytest.raises(SystemExit) as ended:
        app(["checkpoints", "verify", "windowed", "--lake", copied.uri])
    assert ended.value.code == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


# State as rows.


def _state(spark: SparkSession, lake: Lake, name: str, **options: Any) -> StateRows:
    asked = {"keys": (), "open_windows": False, "at": None, "limit": 100, **options}
    (found,) = read_state(spark, lake, plan_state(lake, name, **asked))
    return found


def _windows(batches: Iterable[list[tuple[str, int, float]]], after: float) -> list[tuple[Any, ...]]:
    """Windows that end after a watermark in minutes, of these events: the oracle, in plain Python."""
    values = defaultdict(list)
    for k, v, minutes in chain.from_iterable(batches):
        values[int(minutes // _SIZE) * _SIZE, k].append(v)
    return [
        (_at(start), _at(start + _SIZE), k, len(v), sum(v), sum(v) / len(v), sum(v), min(v), len(v))
        for (start, k), v in sorted(values.items())
        if start + _SIZE > after
    ]


def test_the_state_of_windows_is_what_the_events_say(spark: SparkSession, made: Lake) -> None:
    found = _state(spark, made, "windowed", open_windows=True)
    names = ("window_start", "window_end", "k", "clicks", "total", "mean", "again", "least", "__events")
    assert found.columns == names
    newest = max(t for batch in _CLICKS for _, _, t in batch)
    assert list(found.rows) == _windows(_CLICKS, newest - _DELAY)


def test_the_state_of_an_earlier_batch_is_what_was_open_then(spark: SparkSession, made: Lake) -> None:
    # Batch 1 has the watermark of batch 0, which closes nothing.
    assert list(_state(spark, made, "windowed", at=1).rows) == _windows(_CLICKS[:2], -_DELAY)


def test_one_key_is_shown_and_the_rest_counted_as_more(spark: SparkSession, made: Lake) -> None:
    found = _state(spark, made, "windowed", keys=("k=c",), at=1)
    assert [row[2] for row in found.rows] == ["c"]
    cut = _state(spark, made, "windowed", at=1, limit=1)
    assert (len(cut.rows), cut.more) == (1, True)


def test_sessions_have_their_bounds_key_and_measure(spark: SparkSession, made: Lake) -> None:
    found = _state(spark, made, "visits", open_windows=True)
    assert found.columns == ("window_start", "window_end", "k", "total", "__events")
    # Each of the newest events is a session of its own; that of `c` at 23 ended as the watermark came to 28.
    alone = [("d", 6, 24.0), ("a", 8, 27.0), ("b", 2, 31.0)]
    assert sorted(found.rows) == [(_at(t), _at(t + 5), k, v, 1) for k, v, t in alone]


def test_remembered_keys_say_when_they_are_forgotten(spark: SparkSession, made: Lake) -> None:
    found = _state(spark, made, "firsts")
    assert found.columns == ("k", "expires_at")
    # `c` came first at 12, and again while it was remembered; `d` at 24.
    assert {("c", _at(32)), ("d", _at(44))} <= set(found.rows)


def test_a_column_that_no_state_has_is_refused_with_those_it_has(spark: SparkSession, made: Lake) -> None:
    with pytest.raises(DefinitionError, match=r"no columns store; it has window_start, window_end, k"):
        _state(spark, made, "windowed", keys=("store=1",))
    with pytest.raises(DefinitionError, match="no step of it remembers events"):
        plan_state(made, "ingest_clicks", keys=(), open_windows=False, at=None, limit=1)


def test_files_that_vanish_while_they_are_copied_lead_to_a_newer_batch(
    copied: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = current_epoch(copied, "windowed")
    assert epoch is not None
    folder = Path(copied.uri, epoch.folder)
    held = {log: (folder / log / "6").read_bytes() for log in ("offsets", "commits")}
    for log in held:
        (folder / log / "6").unlink()
    purged = _one(folder, "state/0/0/6_*.changelog")
    read = Checkpoint.read

    def vanishing(self: Checkpoint, path: str) -> bytes | None:
        # As a query that runs: batch 6 ends, and the files of batch 5 go.
        if path.endswith(purged.name) and "6" not in {each.name for each in (folder / "commits").iterdir()}:
            for log, content in held.items():
                (folder / log / "6").write_bytes(content)
            return None
        return read(self, path)

    monkeypatch.setattr(Checkpoint, "read", vanishing)
    _, batch = copy_batch(copied, epoch, tmp_path / "here")
    assert batch == 6
    assert {path.name for path in (tmp_path / "here/commits").iterdir()} >= {"6"}


def test_state_that_is_damaged_is_refused_with_what_to_run(copied: Lake, tmp_path: Path) -> None:
    epoch = current_epoch(copied, "windowed")
    assert epoch is not None
    _cut("state/0/0/*.changelog")(Path(copied.uri, epoch.folder))
    with pytest.raises(CheckpointError, match="tidemark checkpoints verify windowed"):
        copy_batch(copied, epoch, tmp_path / "here")


def test_open_pairs_are_counted_where_measures_share_a_name(spark: SparkSession, made: Lake) -> None:
    epoch = current_epoch(made, WINDOWED.name)
    assert epoch is not None
    rows = ledger_rows(made, WINDOWED.sink.table, WINDOWED.name, epoch.number)
    counted = sum(entry["pairs"] - entry["pairs_late"] - entry["pairs_result"] for _, entry in rows)
    assert open_pairs(spark, made, WINDOWED) == counted > 0
