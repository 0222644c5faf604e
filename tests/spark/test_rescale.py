"""The state of a stopped pipeline gets another number of partitions: nothing is lost, and the books know of it.

What is expected comes from an undisturbed stream of the same batches, and from plain Python.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.caught_up import is_caught_up
from spark_jobs.lake.checkpoints.contents import PARTITIONS
from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import Fault, verify
from spark_jobs.lake.commit_records.stamps import digest
from spark_jobs.lake.errors import CheckpointError, LedgerError
from spark_jobs.operations.rescale import execute
from spark_jobs.operations.rescale.plan import RescalePlan, RescaleRefusedError, plan_rescale
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.spark.state import rows_in_state
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Join,
    Pipeline,
    Process,
    Session,
    Sink,
    Sliding,
    Table,
    Tumbling,
    Watermark,
)
from tests.support import lakes
from tests.support.changing import Pauses
from tests.support.clicks import MINUTE, START, audited, copy_of

pytestmark = pytest.mark.usefixtures("divided")

_KEYS = "abcdefghij"
_BEFORE = [
    [(k, number, float(number)) for number, k in enumerate(_KEYS)],
    [(k, number, 14.0 + number / 10) for number, k in enumerate(_KEYS)],
]
"""Batches of key, value and minutes; the watermark is three minutes behind."""
_AFTER = [
    # Batch 2 is judged by 6, the watermark of batch 1, and closes what ends at or before 11.9: `a` at 8 is on time for
    # the window that closes with it, `b` at 0 only for that.
    [("a", 100, 8.0), ("b", 200, 0.0), ("c", 300, 21.0), ("k", 400, 22.0)],
    # Judged by 11.9: `c` at 5 and `e` at 3 are late, `d` at 12 is on time.
    [("a", 500, 23.0), ("c", 600, 5.0), ("d", 700, 40.0), ("e", 800, 60.0), ("d", 900, 12.0), ("e", 1000, 3.0)],
]
_DELAY, _SIZE = 3, 10


def reading(name: str, *steps: Any) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay=f"{_DELAY} minutes"),
            steps=steps,
            sink=Sink(f"gold.{name}"),
        )
    )


_SUMS = {"n": "count(*)", "total": "sum(v)"}
WINDOWED = reading("windowed", Aggregate(window=Tumbling(f"{_SIZE} minutes"), by=("k",), measures=_SUMS))
VISITS = reading("visits", Aggregate(window=Session("5 minutes"), by=("k",), measures=_SUMS))
FIRSTS = reading("firsts", Deduplicate(keys=("k",), within="20 minutes"))
PAIRS = reading(
    "pairs",
    Join(
        Table("bronze.others", select={"k": "k", "w": "v", "u": "t"}),
        on=("k",),
        event_time="u",
        within="15 minutes",
        how="left",
    ),
)
BEFORE = reading("before", Sliding("15 minutes", by=("k",), measures=_SUMS))
PAUSES = reading("pauses", Process(Pauses, by=("k",)))
PIPELINES = (WINDOWED, PAUSES)
"""State in rows of one kind, and of several."""


class Feed:
    """What two tables are given, batch by batch."""

    def __init__(self, lake: Lake) -> None:
        columns = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
        self._tables = [lakes.Bronze(lake, name, columns, "t") for name in ("bronze.clicks", "bronze.others")]

    def __call__(self, *batches: list[tuple[str, int, float]], begin: int = 0) -> None:
        for table in self._tables:
            table._next = table._next or begin
            for batch in batches:
                table.append([{"k": k, "v": v, "t": lakes.at(START + round(at * MINUTE))} for k, v, at in batch])


_BEGUN = sum(map(len, _BEFORE))
_MORE = 3
"""Partitions to which state of two is divided: keys of both move."""


@pytest.fixture(scope="module")
def begun(spark: SparkSession, divided: None, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake whose pipelines have ended with open state after a batch with events; copied, never changed.

    The watermark that this batch has moved is not used yet: no batch without events came after it.
    """
    return _begin(spark, Lake(str(tmp_path_factory.mktemp("rescale") / "lake")).ensure_exists(), PIPELINES)


def _begin(spark: SparkSession, lake: Lake, pipelines: Sequence[Pipeline]) -> Lake:
    Feed(lake)(*_BEFORE)
    with _only_with_events(spark):
        lakes.run_all(spark, lake, pipelines, close=False)
    return lake


class _only_with_events:
    """In this block no batch runs to close windows alone."""

    _SETTING = "spark.sql.streaming.noDataMicroBatches.enabled"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __enter__(self) -> None:
        self._spark.conf.set(self._SETTING, "false")

    def __exit__(self, *_: object) -> None:
        self._spark.conf.unset(self._SETTING)


@pytest.fixture
def copied(begun: Lake, tmp_path: Path) -> Lake:
    return copy_of(begun, tmp_path / "copy")


def _rescale(spark: SparkSession, lake: Lake, pipeline: Pipeline, partitions: int) -> list[str]:
    said: list[str] = []
    execute.carry_out(spark, lake, plan_rescale(lake, pipeline.name, partitions), said.append)
    return said


def _faults(lake: Lake, pipeline: Pipeline) -> list[Fault]:
    checkpoint = checkpoint_of(lake, pipeline.name)
    return verify(checkpoint, begun_with(checkpoint.epoch))


def _partitions(lake: Lake, pipeline: Pipeline) -> int:
    """Partitions of the newest batch, by its state; what its settings say is the same."""
    checkpoint = checkpoint_of(lake, pipeline.name)
    found = describe(checkpoint)
    assert found.batch is not None
    (count,) = {len({store.partition for store in found.stores if store.operator == 0})}
    assert checkpoint.planned(found.batch).settings[PARTITIONS] == str(count)
    return count


def _state(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> list[Counter[Any]]:
    asked = plan_state(lake, pipeline.name, keys=(), open_windows=False, at=None, limit=100)
    return [Counter(map(repr, each.rows)) for each in read_state(spark, lake, asked)]


def _books(lake: Lake, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """What the ledger says of each batch that is not there for a rescale."""

    def of(entry: LedgerEntry) -> tuple[Any, ...]:
        return entry.terms, entry.watermark_ms, entry.late_watermark_ms, entry.reads, digest(entry.sources)

    return [of(entry) for _, entry in lakes.ledger(lake, pipeline) if entry.kind == "batch"]


def _tables(lake: Lake, pipeline: Pipeline) -> list[list[tuple[Any, ...]]]:
    names = [pipeline.sink.table, f"{pipeline.sink.table}__late"]
    return [lakes.comparable(lakes.rows(lake, name), without=("_batch_id",)) for name in names]


def _by_hand() -> tuple[list[tuple[str, int, int, int]], int]:
    """Closed windows in plain Python: key, begin, events, their sum; and how many events were late."""
    batches = _BEFORE + _AFTER
    newest = [max(at for _, _, at in batch) - _DELAY for batch in batches]
    sums: dict[tuple[str, int], list[int]] = {}
    late = 0
    for number, batch in enumerate(batches):
        judged_by = max(newest[: max(number - 1, 0)], default=float("-inf"))
        for k, v, at in batch:
            begin = int(at // _SIZE) * _SIZE
            if begin + _SIZE <= judged_by:
                late += 1
            else:
                sums.setdefault((k, begin), []).append(v)
    closed = [(k, at, len(v), sum(v)) for (k, at), v in sums.items() if at + _SIZE <= max(newest)]
    return sorted(closed), late


def _go_on_rescaled_and_calm(
    spark: SparkSession, calm: Lake, copied: Lake, pipelines: Sequence[Pipeline], in_between: Sequence[Pipeline]
) -> None:
    """Rescales the streams of one of two equal lakes, goes on in both, and compares all that they write.

    Args:
        spark: the session.
        calm: whose streams nobody touches.
        copied: the other one.
        pipelines: of them.
        in_between: which go back to one partition after a batch; the others stay.
    """
    for each in pipelines:
        (said,) = _rescale(spark, copied, each, _MORE)
        assert (
            f"the same as before, {lakes.ledger(calm, each)[-1][1]['state_rows']} rows, now in {_MORE} partitions"
            in said
        )
        assert (_partitions(copied, each), _faults(copied, each)) == (_MORE, [])
        assert is_caught_up(copied, each)
        done = plan_rescale(copied, each.name, _MORE)
        assert done.nothing_to_do == f"its state has {_MORE} partitions already"
    for lake in (calm, copied):
        Feed(lake)(_AFTER[0], begin=_BEGUN)
        with _only_with_events(spark):
            lakes.run_all(spark, lake, in_between, close=False)
    for each in in_between:
        assert _partitions(copied, each) == _MORE  # the session says 2
        _rescale(spark, copied, each, 1)
        if each is not PAIRS:
            assert _state(spark, copied, each) == _state(spark, calm, each)
    for lake in (calm, copied):
        Feed(lake)(*_AFTER[1:], begin=_BEGUN + len(_AFTER[0]))
        lakes.run_all(spark, lake, pipelines, close=False)
    for each in pipelines:
        assert (_partitions(copied, each), _partitions(calm, each)) == (1 if each in in_between else _MORE, 2)
        assert _tables(copied, each) == _tables(calm, each)
        assert _books(copied, each) == _books(calm, each)
        kinds = [batch for batch, entry in lakes.ledger(copied, each) if entry.kind == "rescale"]
        assert kinds == ([2, 4] if each in in_between else [2])
        lakes.assert_balanced(copied, each)
        assert _faults(copied, each) == []


def test_a_rescaled_stream_writes_what_an_undisturbed_one_writes(
    spark: SparkSession, begun: Lake, copied: Lake, tmp_path: Path
) -> None:
    _go_on_rescaled_and_calm(spark, copy_of(begun, tmp_path / "calm"), copied, PIPELINES, (WINDOWED,))
    table = lakes.rows(copied, "gold.windowed")
    found = sorted((row["k"], _minutes(row["window_start"]), row["n"], row["total"]) for row in table)
    assert (found, len(lakes.rows(copied, "gold.windowed__late"))) == _by_hand()


# State of a processor is divided, and state of windows put together again, in
# test_a_rescaled_stream_writes_what_an_undisturbed_one_writes. Sliding windows keep their state as a processor does,
# first events and sessions have rows by key as windows have, and a join has several such stores. Spark divides each by
# its keys, and what it has made is held against what it was, whatever the kind.
@pytest.mark.long
def test_state_of_every_kind_is_divided_and_put_together_again(spark: SparkSession, tmp_path: Path) -> None:
    pipelines = (FIRSTS, VISITS, PAIRS, BEFORE, PAUSES)
    calm = _begin(spark, Lake(str(tmp_path / "lake")).ensure_exists(), pipelines)
    copied = copy_of(calm, tmp_path / "copied")
    _go_on_rescaled_and_calm(spark, calm, copied, pipelines, pipelines)
    assert rows_in_state(spark, copied, VISITS) == lakes.ledger(copied, VISITS)[-1][1]["state_rows"]
    # They ask in which batch an event was read.
    for each in (VISITS, PAIRS):
        assert audited(spark, copied, each).remedy is None


def _minutes(at: Any) -> int:
    return (lakes.ms(at) - START) // MINUTE


class InjectedError(Exception):
    """The failure that a test asks for."""


def _fails(*_: object) -> None:
    raise InjectedError


def _folder(lake: Lake) -> Path:
    return Path(lake.uri, "_checkpoints/windowed/epoch-1")


def _interrupted(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(execute, where, _fails)
        with pytest.raises(InjectedError):
            _rescale(spark, lake, WINDOWED, _MORE)


@pytest.mark.parametrize("ended", [True, False], ids=["before the ledger", "while the state is divided"])
def test_a_rescale_that_was_interrupted_is_finished_by_the_same_command(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    _interrupted(spark, copied, monkeypatch, "note" if ended else "compare")
    if not ended:
        # As Spark leaves it that dies before the state is whole.
        (_folder(copied) / "commits/2").unlink()
        shutil.rmtree(_folder(copied) / "state/0/2")
    command = f"tidemark rescale windowed --partitions {_MORE}"
    with pytest.raises(CheckpointError, match=re.escape(command)):
        lakes.run(spark, copied, WINDOWED)
    assert [fault.path for fault in _faults(copied, WINDOWED) if command in fault.remedy] == [""]
    assert not is_caught_up(copied, WINDOWED)
    with pytest.raises(RescaleRefusedError, match=re.escape(command)):
        plan_rescale(copied, "windowed", 4)
    plan = plan_rescale(copied, "windowed", _MORE)
    assert (plan.begun, plan.repartitioned) == (True, ended)
    if ended:
        _rescale(spark, copied, WINDOWED, _MORE)
    else:
        # In a process of its own, in which no stream has run.
        process = [sys.executable, "-m", "spark_jobs", *shlex.split(command)[1:], "--lake", copied.uri]
        subprocess.run(process, cwd=Path(__file__).parents[2], check=True)
    Feed(copied)(*_AFTER, begin=_BEGUN)
    lakes.run(spark, copied, WINDOWED)
    lakes.assert_balanced(copied, WINDOWED)
    rows, late = _by_hand()
    assert sum(row["n"] for row in lakes.rows(copied, "gold.windowed")) == sum(row[2] for row in rows)
    assert len(lakes.rows(copied, "gold.windowed__late")) == late
    assert (_partitions(copied, WINDOWED), _faults(copied, WINDOWED)) == (_MORE, [])


def test_state_that_differs_is_told_and_that_of_before_can_go_on(
    spark: SparkSession, copied: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = execute.contents

    def less(spark: SparkSession, lake: Lake, plan: RescalePlan, batch: int) -> execute.Contents:
        found = contents(spark, lake, plan, batch)
        return {key: (rows - 1, *more) for key, (rows, *more) in found.items()} if batch == plan.batch else found

    monkeypatch.setattr(execute, "contents", less)
    with pytest.raises(LedgerError, match=r"operator 0, default: 20 rows before, 19 after") as told:
        _rescale(spark, copied, WINDOWED, _MORE)
    with pytest.raises(CheckpointError):
        lakes.run(spark, copied, WINDOWED)
    # What the text says brings back the state of before.
    for path in re.findall(r"\S+/(?:commits|offsets)/2", str(told.value)):
        Path(path).unlink()
    Feed(copied)(*_AFTER, begin=_BEGUN)
    lakes.run(spark, copied, WINDOWED)
    lakes.assert_balanced(copied, WINDOWED)
    assert len(lakes.rows(copied, "gold.windowed__late")) == _by_hand()[1]


def test_a_batch_that_a_driver_has_planned_meanwhile_is_left_alone(spark: SparkSession, copied: Lake) -> None:
    plan = plan_rescale(copied, "windowed", _MORE)
    offsets = _folder(copied) / "offsets"
    planned = re.sub(r'"batchTimestampMs":\d+', '"batchTimestampMs":4102444800000', (offsets / "1").read_text())
    (offsets / "2").write_text(planned)
    with pytest.raises(RescaleRefusedError, match="a driver has planned batch 2 meanwhile"):
        execute.carry_out(spark, copied, plan, print)
    assert (offsets / "2").read_text() == planned
    assert lakes.ledger(copied, WINDOWED)[-1][0] == 1
