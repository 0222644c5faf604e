"""What goes wrong beside kills: a store that is gone, slow or busy, a full disk, clocks that jump, two drivers at once.

`make chaos FAULTS=200 SEED=1 LAKE=minio` runs so many rounds. In each, drivers are stopped in their tracks and let go
on, killed, or get a second one beside them, and their clock jumps by an hour and back. On MinIO they reach the store
through a proxy that breaks their connections, delays them or answers 503. The disk, of a folder or under MinIO, is full
for a while. All at seeded moments. Then the faults end, a last driver finishes the work, and the tables are compared
with a calm run. What a round did is appended to `.cache/chaos/faults-<lake>-<seed>.jsonl` as it ends; what drivers said
is in `faults-<lake>-<seed>/round-<seed>.log`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from spark_jobs.console.laptop.ports import free_port
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.store.folders import is_a_mark, remove_objects
from tests.chaos import kills
from tests.support import lakes
from tests.support.minio import start_minio
from tests.support.settings import suit_short_lives

Way = Literal["through", "gone", "slow", "busy"]
"""What the proxy does: passes on; cuts and refuses connections; delays each piece; answers 503 itself."""

Fault = Callable[[random.Random], AbstractContextManager[object]]
"""Something that is wrong for the length of a `with` block."""
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LONGEST_S = 600.0
_OF_DRIVERS = ("paused", "killed", "two")
_FAULTS = 1, 3
"""At least and at most so many in a round."""


class Proxy:
    """Stands between drivers and a store.

    Args:
        address: of the store, `http://host:port`.

    Attributes:
        way: what it does now; other threads set it.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._target = str(parts.hostname), int(parts.port or 80)
        self.port, self._way = free_port(), "through"
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def way(self) -> str:
        """What it does now."""
        return self._way

    @way.setter
    def way(self, way: Way) -> None:
        self._way = way
        if way in ("gone", "busy"):
            self._loop.call_soon_threadsafe(self._cut)

    @contextlib.contextmanager
    def going(self, way: Way, _chance: random.Random) -> Iterator[None]:
        """It goes another way for a while."""
        self.way = way
        try:
            yield
        finally:
            self.way = "through"

    def _cut(self) -> None:
        for each in self._open:
            each.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._way == "gone":
            writer.close()
            return
        if self._way == "busy":
            with contextlib.suppress(OSError):
                await reader.read(65_536)
                writer.write(_BUSY)
                await writer.drain()
            writer.close()
            return
        try:
            to_store, from_store = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        both = {writer, from_store}
        self._open |= both
        try:
            await asyncio.gather(self._pass(reader, from_store), self._pass(to_store, writer))
        finally:
            self._open -= both
            for each in both:
                each.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65_536):
                if self._way == "slow":
                    await asyncio.sleep(0.3)
                target.write(piece)
                await target.drain()
            target.close()


class Disk:
    """A small file system, which can be filled.

    Args:
        folder: where it is mounted, which only root may do.
        size: of it, as `mount` takes it.
    """

    def __init__(self, folder: Path, size: str = "192m") -> None:
        self.folder, self._size, self._ballast = folder, size, folder / "ballast"

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.folder)], check=True)
        return self

    def __exit__(self, *raised: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @contextlib.contextmanager
    def full(self, _chance: random.Random) -> Iterator[None]:
        """Not a byte is free for a while, whatever others remove meanwhile."""
        over = threading.Event()
        filler = threading.Thread(target=self._keep_full, args=(over,), daemon=True)
        try:
            self._fill()
            filler.start()
            yield
        finally:
            over.set()
            if filler.is_alive():
                filler.join()
            self._ballast.unlink(missing_ok=True)

    def _keep_full(self, over: threading.Event) -> None:
        # MinIO clears away what it could not finish.
        while not over.wait(0.05):
            self._fill()

    def _fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))


class Clock:
    """The time of day of drivers, which can jump; that of the machine stays.

    Args:
        folder: where it is built.
    """

    def __init__(self, folder: Path) -> None:
        library, self._moved_by = folder / "clock.so", folder / "clock"
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
        self._move(0)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._moved_by)}

    def _move(self, seconds: int) -> None:
        # In place: drivers have the file in their memory.
        with self._moved_by.open("r+b" if self._moved_by.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    @contextlib.contextmanager
    def jumps(self, chance: random.Random) -> Iterator[None]:
        """By an hour, forth or back, and to where it was again."""
        self._move(chance.choice([-3600, 3600]))
        try:
            yield
        finally:
            self._move(0)


@dataclass
class Round:
    """What one lake came to.

    Attributes:
        seed: of the moments.
        faults: what went wrong, in order.
        ends: exit codes of the drivers; of those that were killed -9.
        differing: tables that differ from the calm run's, and what ledgers do not agree on; empty as it should be.
        own_batches: as `kills.Round`.
        seconds: how long it took.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    ends: list[int | None] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    own_batches: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Scene:
    """Where rounds take place.

    Attributes:
        lake_named: gives a lake by its name.
        environment: of the drivers, which leads them to the proxy.
        faults: what can be wrong here, beside what happens to drivers.
        work: what the drivers run.
        landing: the files that they read.
        log: takes what they say.
        expected: the tables of a calm run.
    """

    lake_named: Callable[[str], Lake]
    environment: Mapping[str, str]
    faults: Mapping[str, Fault]
    work: kills.Work
    landing: Path = Path()
    log: str = os.devnull
    expected: Mapping[str, Any] = field(default_factory=dict)


def contents(lake: Lake, work: kills.Work) -> dict[str, Any]:
    """The rows of every table, less in which batch they came: of two drivers one may start while the other still
    ingests, and a reader then has one more batch, in which it reads nothing."""
    return {
        table: lakes.comparable(
            map(kills.with_place, lakes.rows(lake, table)), without=("_source", "_batch_id", "revision")
        )
        for definition in work.definitions
        for table in tables_of(definition)
    }


def run_round(scene: Scene, lake: Lake, seed: int) -> Round:
    """Disturbs drivers until so many faults have been, then lets one finish.

    Args:
        scene: where.
        lake: with its input in place.
        seed: of the moments.
    """
    chance, result, began = random.Random(seed), Round(seed), time.monotonic()
    known = sorted((*scene.faults, *_OF_DRIVERS))
    program, planned = kills.command(lake, scene.work), [chance.choice(known) for _ in range(chance.randint(*_FAULTS))]
    done = False
    while planned and not done and time.monotonic() - began < _LONGEST_S:
        with kills._driver(program, scene.environment, scene.log) as driver:
            # A quarter begins while the session does, the others in a batch.
            starting = chance.random() < 0.25
            if starting or kills._await_progress(driver, lake, scene.work.definitions, scene.work):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(chance.uniform(0.0, 8.0 if starting else 3.0))
            while planned and driver.poll() is None:
                fault = planned.pop(0)
                result.faults.append(fault)
                _disturb(scene, fault, chance, driver, program, result)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(chance.uniform(0.5, 3.0))
            result.ends.append(driver.poll())
            done = driver.poll() == 0  # before all has gone wrong
    if not done:
        result.differing += _finish(program, scene, result)
    if not result.differing:
        found, batches, expected = (
            contents(lake, scene.work),
            kills.batches_of_ingests(lake, scene.work),
            scene.expected,
        )
        if {files for each in batches.values() for files in each} != {1}:
            # A driver died between Spark's log of files and the plan of the batch, so that the next one has read two.
            result.own_batches, expected = batches, _calm_by(batches, scene, seed)
        result.differing += [table for table in found if found[table] != expected[table]]
        result.differing += kills.unbalanced(lake, scene.work)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _calm_by(batches: Mapping[str, Sequence[int]], scene: Scene, seed: int) -> dict[str, Any]:
    """The tables of a run that nobody disturbs, whose ingests read as many files in each batch as they are told."""
    lake = scene.lake_named(f"calm-{seed}")
    kills.run_calm_by(batches, scene.landing, lake, {}, scene.work)
    return contents(lake, scene.work)


def _finish(program: Sequence[str], scene: Scene, result: Round) -> list[str]:
    """Runs a driver that nobody disturbs to its end; what is wrong with that."""
    try:
        run = subprocess.run(
            program,
            env={**os.environ, **scene.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return [f"the last driver has not ended within {_LONGEST_S:.0f} s"]
    result.ends.append(run.returncode)
    return [f"the last driver failed with {run.returncode}: {run.stderr[-1500:]}"] if run.returncode else []


def _disturb(
    scene: Scene,
    fault: str,
    chance: random.Random,
    driver: subprocess.Popen[bytes],
    program: Sequence[str],
    result: Round,
) -> None:
    if fault in scene.faults:
        with scene.faults[fault](chance):
            time.sleep(chance.uniform(0.5, 6.0))
    elif fault == "paused":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 8.0))
            os.killpg(driver.pid, signal.SIGCONT)
    elif fault == "killed":
        kills._kill(driver)
    else:
        with kills._driver(program, scene.environment, scene.log) as other:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(chance.uniform(8.0, 14.0))
            result.ends.append(other.poll())


@contextlib.contextmanager
def _minio(root: Path, work: kills.Work) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        # MinIO keeps its data in this folder of the one that it gets.
        full = _fault_of(stack, root / "minio" / "data", "512m")
        minio = stack.enter_context(start_minio(root / "minio"))
        proxy = stack.enter_context(Proxy(minio.endpoint))
        minio.create_bucket("chaos")
        os.environ.update(minio.environment())
        environment = {**minio.environment(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        faults = {way: partial(proxy.going, way) for way in ("gone", "slow", "busy")}
        yield Scene(lambda name: Lake(f"s3a://chaos/{name}"), environment, {**faults, **full}, work)


@contextlib.contextmanager
def _folder(root: Path, work: kills.Work) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        full = _fault_of(stack, root / "disk", "192m")
        yield Scene(lambda name: Lake(str(root / "disk" / name)).ensure_exists(), {}, full, work)


def _fault_of(stack: contextlib.ExitStack, folder: Path, size: str) -> dict[str, Fault]:
    """A small disk in a folder, which can be full; nothing where it cannot be had."""
    if os.geteuid() != 0:
        print("left out: a full disk (only root may mount a small file system)")
        return {}
    return {"full": stack.enter_context(Disk(folder, size)).full}


_SCENES = {"minio": _minio, "folder": _folder}


def has_a_compiler() -> bool:
    """Whether a clock that jumps can be built."""
    return sys.platform.startswith("linux") and shutil.which("cc") is not None


def _with_a_clock(scene: Scene, root: Path) -> Scene:
    if not has_a_compiler():
        print("left out: clocks that jump (they need Linux and a C compiler, `cc`)")
        return scene
    clock = Clock(root)
    environment, faults = {**scene.environment, **clock.environment}, {**scene.faults, "clock": clock.jumps}
    return replace(scene, environment=environment, faults=faults)


def main() -> int:
    """The command line behind `make chaos FAULTS=…`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lake", choices=tuple(_SCENES), default="minio")
    parser.add_argument("--root", type=Path, default=Path(".cache/chaos"))
    options = parser.parse_args()
    suit_short_lives()
    # What was started is ended, and the small disk given back, also where somebody ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = options.root.absolute() / f"faults-{options.lake}-{options.seed}"
    journal = root.with_suffix(".jsonl")
    root.mkdir(parents=True, exist_ok=True)
    done = [Round(**json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []
    landing, work = root / "landing", kills.Work.of("ingest_sales", "top_products_live", "shop_totals")
    if not landing.exists():
        kills.simulate(landing, files=9, rows_per_file=400)
    run = root / f"run-{int(time.time())}"
    with _SCENES[options.lake](run, work) as found:
        scene = _with_a_clock(found, run)
        calm = scene.lake_named("calm")
        kills.put_input(calm, landing, work)
        print("a calm run, to compare with …", flush=True)
        subprocess.run(kills.command(calm, work), env={**os.environ}, capture_output=True, check=True)
        scene = replace(scene, landing=landing, expected=contents(calm, work))
        for seed in range(options.seed * 1000 + len(done), options.seed * 1000 + options.rounds):
            lake = scene.lake_named(f"round-{seed}")
            kills.put_input(lake, landing, work)
            result = run_round(replace(scene, log=str(root / f"round-{seed}.log")), lake, seed)
            done.append(result)
            with journal.open("a") as file:
                file.write(f"{json.dumps(asdict(result))}\n")
            print(
                f"round {seed}: {', '.join(result.faults)}; {result.differing or 'equal'}; {result.seconds} s",
                flush=True,
            )
            # The small disk goes with all that is on it; what is to be looked into stays.
            if result.differing:
                _keep(lake, root / f"lake-{seed}")
            _remove(lake)
    print(summary(done))
    return 1 if any(each.differing for each in done) else 0


def _keep(lake: Lake, folder: Path) -> None:
    """Copies a lake to a folder."""
    for item in (each for each in lake.store.list().collect() if not is_a_mark(lake.store, each)):
        target = folder / str(item["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(lake.store.get(item["path"]).bytes()))


def _remove(lake: Lake) -> None:
    """Makes room for the lakes of other rounds."""
    if lake.on_s3:
        remove_objects(lake, [item["path"] for item in lake.store.list().collect()])
    else:
        shutil.rmtree(lake.uri)


def summary(done: Sequence[Round]) -> str:
    """What the rounds came to, for a person."""
    faults = Counter(fault for each in done for fault in each.faults)
    counted = ", ".join(f"{count} × {fault}" for fault, count in sorted(faults.items()))
    wrong = [each.seed for each in done if each.differing]
    seconds = sum(each.seconds for each in done) / max(1, len(done))
    return (
        f"{len(done)} rounds of {seconds:.0f} s, {faults.total()} faults ({counted}); rounds with another outcome: "
        f"{wrong or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
