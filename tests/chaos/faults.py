"""What goes wrong beside kills: a store that is gone, slow or busy, drivers that are paused, and two at once.

`make chaos FAULTS=200 SEED=1` runs so many rounds on MinIO. In each, drivers reach the store through a proxy that
breaks their connections, delays them or answers 503, at seeded moments; drivers are stopped in their tracks and let go
on, killed, or get a second one beside them. Then the faults end, a last driver finishes the work, and the tables are
compared with a calm run. What a round did is appended to `.cache/chaos/faults-<seed>.jsonl` as it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from tests.chaos import kills
from tests.support import lakes
from tests.support.minio import start_minio
from tests.support.process import free_port
from tests.support.settings import suit_short_lives

Way = Literal["through", "gone", "slow", "busy"]
"""What the proxy does: passes on; cuts and refuses connections; delays each piece; answers 503 itself."""

FAULTS = ("gone", "slow", "busy", "paused", "killed", "two")
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LONGEST_S = 600.0


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


@dataclass
class Round:
    """What one lake came to.

    Attributes:
        seed: of the moments.
        faults: what went wrong, in order.
        ends: exit codes of the drivers; of those that were killed -9.
        differing: tables that differ from the calm run's, and what ledgers do not agree on; empty as it should be.
        seconds: how long it took.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    ends: list[int | None] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Scene:
    """Where rounds take place.

    Attributes:
        proxy: between the drivers and the store.
        environment: of the drivers, which leads them to the proxy.
        work: what the drivers run.
        expected: the tables of a calm run.
    """

    proxy: Proxy
    environment: Mapping[str, str]
    work: kills.Work
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
    program, planned = kills.command(lake, scene.work), [chance.choice(FAULTS) for _ in range(chance.randint(4, 8))]
    while planned and time.monotonic() - began < _LONGEST_S:
        with kills._driver(program, scene.environment) as driver:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(chance.uniform(8.0, 14.0))  # session and first batches
            while planned and driver.poll() is None:
                fault = planned.pop(0)
                result.faults.append(fault)
                _disturb(scene, fault, chance, driver, program, result)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(chance.uniform(1.0, 4.0))
            result.ends.append(driver.poll())
            if driver.poll() == 0:
                break  # all is done before all has gone wrong
    scene.proxy.way = "through"
    run = subprocess.run(
        program,
        env={**os.environ, **scene.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_S,
    )
    result.ends.append(run.returncode)
    if run.returncode:
        result.differing.append(f"the last driver failed with {run.returncode}: {run.stderr[-1500:]}")
        return result
    found = contents(lake, scene.work)
    result.differing += [table for table in found if found[table] != scene.expected[table]]
    result.differing += kills.unbalanced(lake, scene.work)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _disturb(
    scene: Scene,
    fault: str,
    chance: random.Random,
    driver: subprocess.Popen[bytes],
    program: Sequence[str],
    result: Round,
) -> None:
    if fault in ("gone", "slow", "busy"):
        scene.proxy.way = fault  # type: ignore[assignment]
        time.sleep(chance.uniform(0.5, 6.0))
        scene.proxy.way = "through"
    elif fault == "paused":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 8.0))
            os.killpg(driver.pid, signal.SIGCONT)
    elif fault == "killed":
        kills._kill(driver)
    else:
        with kills._driver(program, scene.environment) as other:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.wait(chance.uniform(10.0, 25.0))
            result.ends.append(other.poll())


@contextlib.contextmanager
def _store(root: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    with start_minio(root / "minio") as minio, Proxy(minio.endpoint) as proxy:
        minio.create_bucket("chaos")
        os.environ.update(minio.environment())
        yield proxy, {**minio.environment(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}


def main() -> int:
    """The command line behind `make chaos FAULTS=…`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, default=Path(".cache/chaos"))
    options = parser.parse_args()
    suit_short_lives()
    root = options.root.absolute() / f"faults-{options.seed}"
    journal = root.with_suffix(".jsonl")
    root.mkdir(parents=True, exist_ok=True)
    done = [Round(**json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []
    landing, work = root / "landing", kills.Work.of("ingest_sales", "top_products_live", "shop_totals")
    if not landing.exists():
        kills.simulate(landing, files=12, rows_per_file=400)
    run = f"run-{int(time.time())}"
    with _store(root / run) as (proxy, environment):
        calm = Lake(f"s3a://chaos/{run}/calm")
        kills.put_input(calm, landing, work)
        print("a calm run, to compare with …", flush=True)
        subprocess.run(kills.command(calm, work), env={**os.environ}, capture_output=True, check=True)
        scene = Scene(proxy, environment, work, contents(calm, work))
        for seed in range(options.seed * 1000 + len(done), options.seed * 1000 + options.rounds):
            lake = Lake(f"s3a://chaos/{run}/round-{seed}")
            kills.put_input(lake, landing, work)
            result = run_round(scene, lake, seed)
            done.append(result)
            with journal.open("a") as file:
                file.write(f"{json.dumps(asdict(result))}\n")
            print(
                f"round {seed}: {', '.join(result.faults)}; {result.differing or 'equal'}; {result.seconds} s",
                flush=True,
            )
    faults = sum(len(each.faults) for each in done)
    wrong = [each.seed for each in done if each.differing]
    print(f"{len(done)} rounds, {faults} faults; rounds with another outcome: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
