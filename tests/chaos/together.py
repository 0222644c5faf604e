"""A stream, backfills, repairs and maintenance on the same tables at once, each killed with SIGKILL on the way.

`python -m tests.chaos.together --minutes 5 --lake minio` lets a simulated shop sell, and runs `tidemark run`, and in
loops of their own `tidemark backfill`, `tidemark repair` and maintenance. At the end every ledger must balance, every
row be as its events say, and every commit that was acknowledged be there. It prints how long the stream's batches took
while it was alone, and while it was not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import commits_between, info_of, latest_version, ledger_rows
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.pipelines import registry
from tests.support.minio import start_minio

PIPELINES = ("top_products", "top_products_live", "shop_totals")
REVISED = ("top_products", "top_products_live")
ALL = ("ingest_sales", *PIPELINES)

_COMPILES_MS = 90_000
"""In the first minute and a half of a driver Java compiles its code: these batches say nothing of later ones."""

MAINTAIN = """
import sys
from datetime import timedelta
from spark_jobs.lake import Lake
from spark_jobs.operations.maintain.execute import Maintenance, carry_out
from spark_jobs.operations.maintain.plan import Pace

carry_out(Maintenance(Lake(sys.argv[1]), pace=Pace(quiet=timedelta(seconds=5))), (), print)
"""


@dataclass
class Party:
    """One of those that write.

    Attributes:
        name: of it.
        command: of the process, which is started again and again.
        log: file of its output.
        environment: of the process.
        ended: exit codes of the processes that have ended by themselves.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: dict[str, str]
    ended: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    killed: int = 0

    def start(self) -> None:
        """Starts the process."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def keep_going(self, until: float, kill_at: float, pause: threading.Event) -> None:
        """Runs the process again and again; kills it once."""
        while time.monotonic() < until and not pause.is_set():
            self.start()
            assert self.process is not None
            while self.process.poll() is None and time.monotonic() < until:
                if not self.killed and time.monotonic() >= kill_at:
                    os.killpg(self.process.pid, signal.SIGKILL)
                    self.process.wait()
                    self.killed = 1
                pause.wait(0.05)
            if self.process.poll() is not None and self.process.returncode != -signal.SIGKILL:
                self.ended.append(self.process.returncode)

    def stop(self) -> None:
        """Lets the process finish."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


def batch_seconds(lake: Lake, pipeline: str, since_ms: float, until_ms: float) -> list[float]:
    """From the plan of each batch to the commit of its result."""
    table, found = registry()[pipeline].sink.table, []
    for _, actions in commits_between(lake, table, 0, latest_version(lake, table)):
        info = info_of(actions)
        stamp = decode(info)
        if stamp is not None and stamp.ledger is not None and stamp.ledger["read"]:
            began = stamp.ledger.started_ms
            if since_ms <= began < until_ms:
                found.append(info["timestamp"] / 1000 - began / 1000)
    return found


def problems(lake: Lake) -> list[str]:
    """What ledgers and tables do not agree on, and versions that are missing."""
    found = []
    for name in ALL:
        definition, epoch = registry()[name], current_epoch(lake, name)
        assert epoch is not None
        table = definition.sink.table
        rows = ledger_rows(lake, table, name, epoch.number)
        found += [f"{name}: {said}" for holds, said in audit.checks(lake, definition, epoch.number, rows) if not holds]
        versions = [version for version, _ in commits_between(lake, table, 0, latest_version(lake, table))]
        if versions != list(range(len(versions))):
            found.append(f"{table}: versions are missing")
    return found


def run(lake: Lake, environment: dict[str, str], minutes: float, seed: int, rate: int, logs: Path) -> list[str]:
    """Everything at once; gives what is wrong at the end."""
    chance = random.Random(seed)
    tidemark = [sys.executable, "-m", "spark_jobs.cli"]
    at = ("--lake", lake.uri)
    alone_s, together_s = 180.0, minutes * 60
    shop = Party(
        "shop",
        [*tidemark, "simulate", *at, "--streams", "sales", "--rate", str(rate), "--speed", "600", "--late", "0.03",
         "--seconds", str(alone_s + together_s), "--start", "2026-01-01T00:00:00"],
        logs / "shop.log", environment,
    )  # fmt: skip
    stream = Party("stream", [*tidemark, "run", *ALL, *at], logs / "stream.log", environment)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    backfill = [
        *tidemark, "backfill", "top_products", "--from", begin.isoformat(),
        "--to", (begin + timedelta(days=5)).isoformat(), "--force", *at,
    ]  # fmt: skip
    parties = [
        Party("backfill", backfill, logs / "backfill.log", environment),
        Party("repair", [*tidemark, "repair", *REVISED, *at], logs / "repair.log", environment),
        Party("maintenance", [sys.executable, "-c", MAINTAIN, lake.uri], logs / "maintenance.log", environment),
    ]
    shop.start()
    stop = threading.Event()
    began_ms, began = time.time() * 1000, time.monotonic()
    until = began + alone_s + together_s
    threads = [
        threading.Thread(
            target=stream.keep_going, args=(until, began + alone_s + chance.uniform(0.2, 0.8) * together_s, stop)
        )
    ]
    threads[0].start()
    stop.wait(alone_s)
    together_ms = time.time() * 1000
    for party in parties:
        kill_at = time.monotonic() + chance.uniform(0.1, 0.7) * together_s
        threads.append(threading.Thread(target=party.keep_going, args=(until, kill_at, stop)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    ended_ms = time.time() * 1000
    for party in (*parties, stream, shop):
        party.stop()
    print("killed:", ", ".join(f"{each.name} {each.killed}" for each in (stream, *parties)))
    print("runs that ended by themselves:", {each.name: each.ended for each in (stream, *parties)})
    # What was left in the middle is finished, and what came late is counted.
    for command in (
        [*tidemark, "run", *ALL, "--until-caught-up", "--close", *at],
        [*tidemark, "repair", *REVISED, *at],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return [f"{' '.join(command[2:4])}: {done.stdout[-500:]} {done.stderr[-1500:]}"]
    for name in PIPELINES:
        alone = batch_seconds(lake, name, began_ms + _COMPILES_MS, together_ms)
        together = batch_seconds(lake, name, together_ms, ended_ms)
        if alone and together:
            ratio = statistics.median(together) / statistics.median(alone)
            print(
                f"{name}: a batch took {statistics.median(alone):.2f} s alone ({len(alone)}), "
                f"{statistics.median(together):.2f} s beside the others ({len(together)}): {ratio:.2f} x"
            )
    found = [f"{each.name} was not killed" for each in (stream, *parties) if not each.killed]
    # 75: another writer was faster each time, and the message says so.
    codes = {each.name: {*each.ended} - {0, 75} for each in parties}
    found += [f"{name} ended with {sorted(ended)}" for name, ended in codes.items() if ended]
    found += problems(lake)
    audited = subprocess.run(
        [*tidemark, "audit", *PIPELINES, *at], env=environment, capture_output=True, text=True, check=False
    )
    print(audited.stdout)
    if audited.returncode:
        found.append(audited.stderr[-2000:])
    return found


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=400, help="sales a second; the default keeps two cores busy")
    parser.add_argument("--lake", choices=("folder", "minio"), default="minio")
    options = parser.parse_args()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="together-")))
        environment = {**os.environ, "TIDEMARK_LOGS": str(root / "logs")}
        lake = Lake(str(root / "lake")).ensure_exists()
        if options.lake == "minio":
            server = stack.enter_context(start_minio(root / "minio"))
            os.environ.update(server.environment())
            environment |= server.environment()
            server.create_bucket("together")
            lake = Lake("s3a://together/lake")
        found = run(lake, environment, options.minutes, options.seed, options.rate, root)
        for log in root.glob("*.log"):
            (Path(".cache") / f"together-{log.name}").write_bytes(log.read_bytes())
    for problem in found:
        print("WRONG", problem)
    print("sound" if not found else "NOT SOUND")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
