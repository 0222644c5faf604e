"""Kills a driver with SIGKILL at seeded moments until its work is done, and compares the tables with a calm run.

`make chaos N=200 SEED=1 LAKE=folder` runs rounds until N kills have been made. Each round is one lake: the same input,
killed at moments of its own. What a round did is appended to `.cache/chaos/<lake>-<seed>.jsonl` as it ends, so that a
run that is interrupted goes on with the next round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.settings import Settings
from spark_jobs.pipelines import registry
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spark.session import build_session
from spark_jobs.spec import Definition, Files, Ingest, Pipeline
from tests.chaos import pipelines
from tests.support import lakes
from tests.support.minio import start_minio
from tests.support.settings import suit_short_lives

_ROWS_OF_STREAM = {"sales": 1, "orders": 5}
"""Stream -> that its files have the rows of a file of sales, divided by this: so both have as many files."""
_PRODUCTS = 80
"""So many of the shop's hundred products have a category; sales of the others are set aside."""
PIPELINES_FILE = str(Path(pipelines.__file__))


@dataclass(frozen=True)
class Work:
    """What a driver runs that is killed.

    Attributes:
        definitions: of the file.
        file: where the driver finds them.
    """

    definitions: tuple[Definition, ...]
    file: str = PIPELINES_FILE

    @classmethod
    def of(cls, *names: str) -> Work:
        """Those of these names in `tests/chaos/pipelines.py`."""
        return cls(tuple(getattr(pipelines, name) for name in names))

    @property
    def ingests(self) -> tuple[Ingest, ...]:
        """What fills the bronze tables."""
        return tuple(each for each in self.definitions if isinstance(each, Ingest))

    @property
    def readers(self) -> tuple[Pipeline, ...]:
        """What reads them."""
        return tuple(each for each in self.definitions if isinstance(each, Pipeline))

    @property
    def looks_up(self) -> bool:
        """Whether a reader looks up what the tests fill."""
        return any(pipelines.LOOKUP in reader.lookups for reader in self.readers)


ALL = Work(tuple(value for value in vars(pipelines).values() if isinstance(value, Ingest | Pipeline)))
# A driver that makes no progress for so long has not survived its predecessor's death.
_STUCK_S = 180.0


@dataclass
class Round:
    """What one killed lake came to.

    Attributes:
        seed: of the moments.
        kills: how many there were.
        moments: for each kill, what ran and the newest file of the lake: where in a batch the driver died.
        differing: tables that differ from the calm run's; empty as it should be.
        own_batches: files of each batch of each ingest, where a kill between Spark's log of files and the plan of the
            batch has put two files into one: the tables are then held against a calm run of the same batches.
        seconds: how long it took.
    """

    seed: int
    kills: int = 0
    moments: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    own_batches: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0


def simulate(landing: Path, *, files: int, rows_per_file: int) -> None:
    """Sales and orders, with late, double and malformed rows, in files whose order of arrival is their name's."""
    for stream, fewer in _ROWS_OF_STREAM.items():
        shop = Shop(
            seed=11,
            streams=(stream,),
            start=datetime(2026, 1, 1, tzinfo=UTC),
            rate=None,
            density=files * rows_per_file / (6 * 3600),
            disorder=Disorder(
                late=0.1, late_after="30 minutes", late_by="4 hours", duplicates=0.02, malformed=0.02, future=0
            ),
        )
        each = rows_per_file // fewer
        simulate_files(shop, out=str(landing), rows=files * each, rows_per_file=each)
        for number, path in enumerate(sorted((landing / stream).iterdir())):
            os.utime(path, (1_767_225_600 + number, 1_767_225_600 + number))


def command(lake: Lake, work: Work = ALL) -> list[str]:
    """A driver that does all the work there is, first the ingests, then the pipelines, and then ends."""
    chosen = [f"{work.file}:{each.name}" for each in work.definitions]
    program = [sys.executable, "-m", "spark_jobs.cli", "run", *chosen]
    return [*program, "--lake", lake.uri, "--until-caught-up", "--close"]


def with_place(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its file's name and its place in it, which are the same in every lake."""
    source = row.get("_source") or {"name": "", "position": None}
    return {**row, "place": (source["name"].rsplit("/", 1)[-1], source["position"])}


def run_calm(lake: Lake, environment: Mapping[str, str], work: Work = ALL) -> dict[str, Any]:
    """A run that nobody disturbs, and its tables."""
    done = subprocess.run(
        command(lake, work), env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the calm run failed with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return contents(lake, work)


def batches_of_ingests(lake: Lake, work: Work = ALL) -> dict[str, list[int]]:
    """How many files each batch of each ingest has read."""
    return {each.name: _batches_of(lake, each) for each in work.ingests if isinstance(each.source, Files)}


def _batches_of(lake: Lake, ingest: Ingest) -> list[int]:
    offsets = [json.loads(next(iter(row.sources.values())))["logOffset"] for _, row in lakes.ledger(lake, ingest)]
    return [upto - before for before, upto in zip([-1, *offsets], offsets, strict=False)]


def arrive_by(
    batches: Mapping[str, Sequence[int]],
    landing: Path,
    lake: Lake,
    run_ingest: Callable[[str], object],
    work: Work = ALL,
) -> None:
    """Lets files of an input arrive in a lake, so many at a time, and has them ingested each time."""
    if work.looks_up:
        _put_lookup(lake)
    for ingest in (each for each in work.ingests if each.name in batches):
        files = iter(_input_of(ingest, landing))
        for count in batches[ingest.name]:
            _put(lake, ingest, [next(files) for _ in range(count)])
            run_ingest(ingest.name)


def run_calm_by(
    batches: Mapping[str, Sequence[int]],
    landing: Path,
    lake: Lake,
    environment: Mapping[str, str],
    work: Work = ALL,
) -> dict[str, Any]:
    """A run that nobody disturbs, whose ingests read as many files in each batch as they are told."""
    # In one session: a driver for each batch takes minutes. The registered ones take all that is there.
    with patch.dict(os.environ, environment):
        arrive_by(
            batches, landing, lake, lambda name: lakes.run_all(_session(), lake, [registry()[name]], close=False), work
        )
    return run_calm(lake, environment, work)


@cache
def _session() -> SparkSession:
    """Of this process."""
    scratch = Lake(tempfile.mkdtemp()).ensure_exists()
    return build_session(scratch, settings=Settings(master="local[1]", driver_memory="1g"))


def contents(lake: Lake, work: Work = ALL) -> dict[str, Any]:
    """The rows of every table that the pipelines write, less what a repeated run may change."""
    found = {}
    for definition in work.definitions:
        for table in tables_of(definition):
            # A row's file lies in its own lake; its place in the file is the same everywhere.
            rows = [with_place(row) for row in lakes.rows(lake, table)]
            found[table] = lakes.comparable(rows, without=("_source",))
    return found


def unbalanced(lake: Lake, work: Work = ALL) -> list[str]:
    """What the ledgers and the tables do not agree on, in words."""
    found = []
    for definition in work.definitions:
        rows = lakes.ledger(lake, definition)
        epoch = current_epoch(lake, definition.name)
        checks = audit.checks(lake, definition, epoch.number if epoch else 0, rows)
        found += [f"{definition.name}: {text}" for holds, text in checks if not holds]
        if [batch for batch, _ in rows] != list(range(len(rows))):
            found.append(f"{definition.name}: batches {[batch for batch, _ in rows]}")
    return found


CalmBy = Callable[[Mapping[str, Sequence[int]]], Mapping[str, Any]]
"""The tables of a calm run whose ingests read so many files in each batch."""


def run_killed(
    lake: Lake,
    environment: Mapping[str, str],
    expected: Mapping[str, Any],
    *,
    seed: int,
    most_kills: int,
    work: Work = ALL,
    calm_by: CalmBy | None = None,
) -> Round:
    """Kills the driver again and again, each time a random moment after it has begun to commit.

    A quarter of the kills comes as soon as anything is committed, which is the ingest's until it is done; the others,
    and a single one, come when the pipelines commit, all of which run at once.

    Args:
        lake: with its input in place.
        environment: of the drivers.
        expected: the tables of a calm run.
        seed: of the moments.
        most_kills: in this round.
        work: what the driver runs.
        calm_by: where given, tables are held against a calm run of the same batches if a kill has changed their cut.
    """
    chance, result, began = random.Random(seed), Round(seed), time.monotonic()
    program = command(lake, work)
    early = most_kills // 4 if most_kills > 1 else 0
    for watched, most in ((work.definitions, early), (work.readers, most_kills)):
        for _ in range(most - result.kills):
            death = kill_once(program, lake, environment, chance, watched, work)
            if death is None:
                break
            result.moments.append(death.moment)
            result.kills += 1
    run = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if run.returncode:
        said = f"{run.stdout[-500:]} {run.stderr[-1500:]}"
        result.differing.append(f"a run that was not killed failed with {run.returncode}: {said}")
        return result
    found, batches = contents(lake, work), batches_of_ingests(lake, work)
    if calm_by is not None and {files for each in batches.values() for files in each} != {1}:
        result.own_batches, expected = batches, calm_by(batches)
    result.differing += [table for table in expected if found[table] != expected[table]]
    result.differing += unbalanced(lake, work)
    result.seconds = time.monotonic() - began
    return result


@dataclass(frozen=True)
class Death:
    """Of a driver.

    Attributes:
        moment: what ran, and the newest file of the lake.
        within: pipelines that had planned a batch and not finished it, and had written something in this driver.
    """

    moment: str
    within: frozenset[str]


def kill_once(
    program: Sequence[str],
    lake: Lake,
    environment: Mapping[str, str],
    chance: random.Random,
    watched: Sequence[Definition],
    work: Work = ALL,
) -> Death | None:
    """Kills a driver a random moment after one of what is watched has committed something.

    Args:
        program: the driver's command.
        lake: that it works on.
        environment: of the driver.
        chance: that picks the moment.
        watched: of its definitions.
        work: what it runs.

    Returns:
        None where it has ended before.
    """
    before = _progress(lake, work)
    with _driver(program, environment) as driver:
        if not _await_progress(driver, lake, watched, work):
            _refuse_failure(driver)
            return None
        # The moment of death: anywhere in the next batches.
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(chance.uniform(0.0, 2.5))
            _refuse_failure(driver)
            return None
        _kill(driver)
    marks = _marks(lake, work)
    phase = "pipelines" if any(marks[reader.name] for reader in work.readers) else "ingest"
    within = (name for name, found in marks.items() if len(found) > before[name] and _in_batch(found))
    death = Death(f"{phase}: {_newest(lake)}", frozenset(within))
    if work.looks_up:
        _change_lookup(lake)
    return death


def _refuse_failure(driver: subprocess.Popen[bytes]) -> None:
    """A driver that nobody killed has to end well, also when the next one would make up for it."""
    if driver.returncode:
        raise RuntimeError(f"a driver that nobody killed ended with {driver.returncode}")


@contextlib.contextmanager
def _driver(
    program: Sequence[str], environment: Mapping[str, str], log: str = os.devnull
) -> Iterator[subprocess.Popen[bytes]]:
    with Path(log).open("ab") as output:
        driver = subprocess.Popen(
            program,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        _kill(driver)


def run_until(command: Sequence[str], reached: Callable[[], bool]) -> None:
    """Runs a command and kills it as soon as something has happened.

    Raises:
        AssertionError: if it ends before.
    """
    with _driver(command, {}) as process:
        deadline = time.monotonic() + _STUCK_S
        while not reached():
            assert process.poll() is None, f"it has ended with {process.returncode} before it was killed"
            assert time.monotonic() < deadline, f"it has not come so far in {_STUCK_S:.0f} s"
            time.sleep(0.005)
    assert process.returncode == -signal.SIGKILL, "it was killed"


def run_until_death(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs a command that kills itself."""
    with tempfile.NamedTemporaryFile() as log:
        with _driver(command, environment, log.name) as process:
            process.wait(_STUCK_S)
        said = log.read().decode(errors="replace")[-4000:]
    assert process.returncode == -signal.SIGKILL, f"it was not killed, but ended with {process.returncode}: {said}"


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the driver's Python and JVM at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(driver.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=30)
    driver.wait()


def _progress(lake: Lake, work: Work) -> dict[str, int]:
    """How many commits and log entries of each pipeline there are in the lake."""
    return {name: len(found) for name, found in _marks(lake, work).items()}


def _marks(lake: Lake, work: Work) -> dict[str, list[str]]:
    """The commits and log entries of each pipeline."""
    marks = ("/_delta_log/", "/offsets/", "/commits/")
    paths = [str(item["path"]) for item in lake.store.list().collect()]
    marked = [path for path in paths if any(mark in path for mark in marks)]
    return {each.name: [path for path in marked if path.startswith(_places(each))] for each in work.definitions}


def _in_batch(marks: Sequence[str]) -> bool:
    """Whether the newest batch that was planned has not been finished."""
    planned, done = (
        {path.rsplit("/", 1)[-1] for path in marks if log in path and path.rsplit("/", 1)[-1].isdigit()}
        for log in ("/offsets/", "/commits/")
    )
    return bool(planned - done)


def _places(definition: Definition) -> tuple[str, ...]:
    tables = (f"{table.replace('.', '/')}/" for table in tables_of(definition))
    return (f"_checkpoints/{definition.name}/", *tables)


def _newest(lake: Lake) -> str:
    items = sorted(lake.store.list().collect(), key=lambda item: item["last_modified"])
    return str(items[-1]["path"]) if items else ""


def _await_progress(driver: subprocess.Popen[bytes], lake: Lake, watched: Sequence[Definition], work: Work) -> bool:
    """Waits until the driver commits something for one of these; False where it ends without."""
    before = newest = _progress(lake, work)
    deadline = time.monotonic() + _STUCK_S
    while driver.poll() is None:
        now = _progress(lake, work)
        if any(now[each.name] > before[each.name] for each in watched):
            return True
        if now != newest:
            newest, deadline = now, time.monotonic() + _STUCK_S
        if time.monotonic() > deadline:
            raise TimeoutError(f"the driver has committed nothing for {_STUCK_S:.0f} s; newest: {_newest(lake)}")
        # Seldom: to list a lake costs the driver its processor.
        time.sleep(0.25)
    return False


@contextlib.contextmanager
def lakes_of(kind: str, root: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """A function that gives a fresh lake by its name, with its input in place, and the driver's environment."""
    root.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        yield lambda name: Lake(str(root / name)).ensure_exists(), {}
        return
    with start_minio(root / "minio") as minio:
        minio.create_bucket("chaos")
        environment = minio.environment()
        with patch.dict(os.environ, environment):
            yield lambda name: Lake(f"s3a://chaos/{name}"), environment


def put_input(lake: Lake, landing: Path, work: Work = ALL) -> None:
    """Copies the input into a lake, in order, each file a moment after the one before: a source reads them so."""
    if work.looks_up:
        _put_lookup(lake)
    for ingest in work.ingests:
        if isinstance(ingest.source, Files):
            _put(lake, ingest, _input_of(ingest, landing))


def _put_lookup(lake: Lake) -> None:
    _append_categories(lake, {f"p-{number + 1:03d}": f"c-{number % 7}" for number in range(_PRODUCTS)})


def _change_lookup(lake: Lake) -> None:
    """A newer version with other rows, that gives each sale what the one before gave it.

    The next driver takes it, except for a batch that a table has a part of; the tables stay comparable.
    """
    _append_categories(lake, {f"unsold-{time.time_ns()}": "none"})


def _append_categories(lake: Lake, categories: Mapping[str, str]) -> None:
    rows = pa.table({"product_id": [*categories], "category": [*categories.values()]})
    where = lake.table_uri(pipelines.LOOKUP)
    write_deltalake(where, rows, mode="append", storage_options=lake.storage_options)


def _input_of(ingest: Ingest, landing: Path) -> list[Path]:
    return sorted((landing / Path(ingest.source.path).name).iterdir())


def _put(lake: Lake, ingest: Ingest, paths: Sequence[Path]) -> None:
    newest: Any = None
    for path in paths:
        target = f"{ingest.source.path}/{path.name}"
        while True:
            lake.store.put(target, path.read_bytes())
            modified = lake.store.head(target)["last_modified"]
            # Spark orders files by their modification time in whole milliseconds.
            if newest is None or modified - newest >= timedelta(milliseconds=5):
                newest = modified
                break
            # A bucket's times are whole seconds: writing again at once would fill a small disk with what was replaced.
            time.sleep(0.1)


def main() -> int:
    """The command line behind `make chaos`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lake", choices=("folder", "minio"), default="folder")
    parser.add_argument("--root", type=Path, default=Path(".cache/chaos"))
    options = parser.parse_args()
    suit_short_lives()
    root = options.root.absolute() / f"{options.lake}-{options.seed}"
    journal = root.with_suffix(".jsonl")
    root.mkdir(parents=True, exist_ok=True)
    rounds = [Round(**json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []
    landing = root / "landing"
    if not landing.exists():
        simulate(landing, files=12, rows_per_file=400)
    run_folder = root / f"run-{int(time.time())}"
    with lakes_of(options.lake, run_folder) as (lake_named, environment):
        calm = lake_named("calm")
        put_input(calm, landing)
        print("a calm run, to compare with …", flush=True)
        expected = run_calm(calm, environment)
        while (made := sum(each.kills for each in rounds)) < options.kills:
            seed = options.seed * 1000 + len(rounds)
            lake = lake_named(f"round-{seed}")
            put_input(lake, landing)
            calm_by = partial(
                run_calm_by,
                landing=landing,
                lake=Lake(str(run_folder / f"calm-{seed}")).ensure_exists(),
                environment={},
            )
            most = min(16, options.kills - made)
            result = run_killed(lake, environment, expected, seed=seed, most_kills=most, calm_by=calm_by)
            rounds.append(result)
            if not result.kills:
                raise RuntimeError(f"round {seed} ended before anything was killed: {result.differing}")
            with journal.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            verdict = f"DIFFERS in {', '.join(result.differing)}" if result.differing else "equal to the calm run"
            cut = f" of the same batches {result.own_batches}" if result.own_batches else ""
            print(f"seed {seed}: {result.kills} kills in {result.seconds:.0f} s, tables {verdict}{cut}", flush=True)
    bad = [each for each in rounds if each.differing]
    kills = sum(each.kills for each in rounds)
    equal = len(rounds) - len(bad)
    print(f"{kills} kills in {len(rounds)} rounds on {options.lake}: {equal} rounds equal, {len(bad)} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
