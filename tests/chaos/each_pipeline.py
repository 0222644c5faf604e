"""Kills drivers that run the registered pipelines themselves, each of them within a batch, and compares the tables.

`make chaos OF=pipelines LAKE="folder minio"` takes them in groups that share ingests. A group's driver is killed once
while it ingests, and then at seeded moments after its pipelines commit, until each of them has been in the midst of a
batch at one death. Then a driver finishes the work, and the tables are held against those of a calm run. What a group
came to is appended to `.cache/chaos/pipelines-<seed>.jsonl` as it ends, so that a run which is interrupted goes on with
the next. Calm runs are kept beside it and serve both kinds of lakes: another version of the code gets another seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.pipelines import registry
from spark_jobs.pipelines._registry import with_sources
from spark_jobs.plan.columns import EVENT_ID, OTHER
from spark_jobs.simulator import STREAM_NAMES, Disorder, Shop, simulate_files
from spark_jobs.spec import Ingest
from spark_jobs.spec.chains import links
from tests.chaos import kills, registered
from tests.support import lakes
from tests.support.settings import suit_short_lives

GROUPS = {
    "sales": ("rolling_sales", "shop_totals", "top_products", "top_products_live", "tumbling_by_hand"),
    "clicks": (
        "ingest_time_activity", "ingest_time_difference", "page_sessions", "unique_events", "user_activity",
    ),
    "orders": ("order_payments", "shipment_orders", "valid_orders"),
    "offers and rides": ("personal_offers", "ride_matching"),
    "cafe": ("cafe_service", "cafe_spending", "cafe_visits", "guest_profile"),
    "machines": ("machine_health", "machine_readings", "machine_spikes", "machine_statuses", "silent_machines"),
    "markets and services": ("service_errors", "service_incidents", "stock_averages", "stock_triples"),
    "bank": ("unique_transfers", "account_balances", "card_fraud"),
}  # fmt: skip
"""What runs in one driver; what fills and looks up its tables comes with it."""

FILES = 4
_START = datetime(2026, 3, 1, 8, tzinfo=UTC)
_BY_ARRIVAL = "gold.ingest_time_activity"
"""Its windows are those in which events have arrived, which no two runs share: compared is what users did in all."""
_FEWEST, _MOST = 3, 8


@dataclass
class Round:
    """What the killed driver of a group came to.

    Attributes:
        group: its name.
        lake: folder or minio.
        seed: of the moments.
        moments: for each kill, what ran and the newest file of the lake.
        within: definition -> at how many deaths it was in the midst of a batch.
        differing: tables that differ from the calm run's, what ledgers do not agree on, and pipelines that no kill has
            met within a batch; empty as it should be.
        own_batches: as `kills.Round`.
        rows: of each result.
        seconds: how long it took.
    """

    group: str
    lake: str
    seed: int
    moments: list[str] = field(default_factory=list)
    within: dict[str, int] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    own_batches: dict[str, list[int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def work_of(group: str) -> kills.Work:
    """What the driver of a group runs."""
    chosen = with_sources(registry()[name] for name in GROUPS[group])
    return kills.Work(tuple(registered.DEFINITIONS[each.name] for each in chosen), str(Path(registered.__file__)))


def simulate(landing: Path, *, files: int = FILES, rows: int = 11_500) -> None:
    """Four hours of all streams, with late, double and malformed rows, each in so many files in order of arrival."""
    shop = Shop(
        seed=5, start=_START, rate=None, density=0.05, streams=STREAM_NAMES, visit_updates=True,
        reading_every=timedelta(seconds=60), position_every=timedelta(seconds=90),
        users=12, customers=12, machines=4, drivers=6, accounts=8, cards=12, symbols=3,
        disorder=Disorder(disorder=0.3, late=0.15, late_by="3 hours", duplicates=0.05, malformed=0.01, future=0),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        simulate_files(shop, out=folder, rows=rows, rows_per_file=rows)
        for stream in STREAM_NAMES:
            (only,) = (Path(folder) / stream).iterdir()
            lines, target = only.read_bytes().splitlines(keepends=True), landing / stream
            target.mkdir(parents=True)
            for number in range(files):
                path = target / f"{number}.json"
                begin, end = (len(lines) * place // files for place in (number, number + 1))
                path.write_bytes(b"".join(lines[begin:end]))
                os.utime(path, (1_767_225_600 + number, 1_767_225_600 + number))


def contents(lake: Lake, work: kills.Work) -> dict[str, Any]:
    """The rows of every table, less what a repeated run may change.

    What reads results again has batches of its own, which depend on when these were committed. An event without an id
    of its own is called by its file's place, which is another in each lake.
    """
    nameless = {each.sink.table for each in work.ingests if each.event_id is None}
    _, *later = links(work.definitions)
    chained = {table for link in later for each in (*link.ingests, *link.pipelines) for table in tables_of(each)}
    found = {}
    for definition in work.definitions:
        reads = () if isinstance(definition, Ingest) else definition.tables
        read = {definition.sink.table, *(table.name for table in reads)}
        own = ("_source",) if read.isdisjoint(nameless) else ("_source", EVENT_ID, f"{OTHER}{EVENT_ID}")
        for table in tables_of(definition):
            rows = [kills.with_place(row) for row in lakes.rows(lake, table)]
            if table == _BY_ARRIVAL:
                found[table] = _in_all(rows)
                continue
            without = (*own, "place", "_batch_id", "revision") if table in chained else own
            found[table] = lakes.comparable(map(_without_clock, rows), without=without)
    return found


def _without_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row less when it has arrived, of which a heartbeat's id is made where a reader goes by it."""
    kept = {name: value for name, value in row.items() if name != "arrived_at"}
    return {**kept, "_event_id": "heartbeat"} if row.get("_heartbeat") else kept


def _in_all(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        sums[row["user_id"]].update(events=row["events"], misplaced=row["misplaced"])
    return dict(sums)


def kill_each(
    lake: Lake, environment: Mapping[str, str], work: kills.Work, chance: random.Random, result: Round
) -> None:
    """Kills drivers, first while they ingest, then until each pipeline has been killed within a batch."""
    program, unmet = kills.command(lake, work), {each.name for each in work.readers}
    watched: Sequence[Any] = work.ingests
    while len(result.moments) < _MOST and (unmet or len(result.moments) < _FEWEST):
        death = kills.kill_once(program, lake, environment, chance, watched, work)
        if death is None:
            break
        result.moments.append(death.moment)
        for name in death.within:
            result.within[name] = result.within.get(name, 0) + 1
        unmet -= death.within
        watched = [each for each in work.readers if each.name in unmet] or work.readers
    result.differing += [f"{name}: no kill has met it within a batch" for name in sorted(unmet)]


def run_group(
    group: str,
    lake: Lake,
    environment: Mapping[str, str],
    landing: Path,
    calm: Path,
    seed: int,
) -> Round:
    """Kills the drivers of a group, lets one finish, and compares.

    Args:
        group: its name.
        lake: an empty one.
        environment: of the drivers.
        landing: the input.
        calm: the folder of a lake in which the group has run undisturbed.
        seed: of the moments.
    """
    began, work, chance = time.monotonic(), work_of(group), random.Random(f"{seed}/{group}")
    result = Round(group, "minio" if lake.on_s3 else "folder", seed)
    kills.put_input(lake, landing, work)
    kill_each(lake, environment, work, chance, result)
    run = subprocess.run(
        kills.command(lake, work), env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if run.returncode:
        said = f"{run.stdout[-500:]} {run.stderr[-1500:]}"
        result.differing.append(f"a run that was not killed failed with {run.returncode}: {said}")
        return result
    found, batches, expected = contents(lake, work), kills.batches_of_ingests(lake, work), Lake(str(calm))
    if {files for each in batches.values() for files in each} != {1}:
        # A driver died between Spark's log of files and the plan of the batch, so that the next one has read two.
        result.own_batches, expected = batches, Lake(f"{calm}-by-{result.lake}-{seed}").ensure_exists()
        kills.run_calm_by(batches, landing, expected, {}, work)
    held_against = contents(expected, work)
    result.differing += [table for table in found if found[table] != held_against[table]]
    result.differing += kills.unbalanced(lake, work)
    result.rows = {each.sink.table: len(lakes.rows(lake, each.sink.table)) for each in work.readers}
    result.seconds = round(time.monotonic() - began, 1)
    return result


def run_calm(group: str, landing: Path, folder: Path) -> None:
    """Runs a group undisturbed in a folder, unless that has been done."""
    work, complete = work_of(group), folder.with_suffix(".complete")
    if complete.exists():
        return
    print(f"{group}: a calm run, to compare with …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake(str(folder)).ensure_exists()
    kills.put_input(lake, landing, work)
    kills.run_calm(lake, {}, work)
    complete.touch()


def main() -> int:
    """The command line behind `make chaos OF=pipelines`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lake", choices=("folder", "minio"), nargs="+", default=["folder"])
    parser.add_argument("--groups", choices=tuple(GROUPS), nargs="+", default=list(GROUPS))
    parser.add_argument("--root", type=Path, default=Path(".cache/chaos"))
    options = parser.parse_args()
    suit_short_lives()
    # What was started is ended also where somebody ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = options.root.absolute() / f"pipelines-{options.seed}"
    journal = root.with_suffix(".jsonl")
    root.mkdir(parents=True, exist_ok=True)
    done = [Round(**json.loads(line)) for line in journal.read_text().splitlines()] if journal.exists() else []
    landing, run_folder = root / "landing", root / f"run-{int(time.time())}"
    if not landing.exists():
        simulate(landing)
    for group in options.groups:
        wanted = [lake for lake in options.lake if (group, lake) not in {(each.group, each.lake) for each in done}]
        calm = root / f"calm-{group}".replace(" ", "-")
        if wanted:
            run_calm(group, landing, calm)
        for kind in wanted:
            with kills.lakes_of(kind, run_folder / kind / group.replace(" ", "-")) as (lake_named, environment):
                result = run_group(group, lake_named("lake"), environment, landing, calm, options.seed)
            done.append(result)
            with journal.open("a") as file:
                file.write(f"{json.dumps(asdict(result))}\n")
            print(told(result), flush=True)
    bad = [each for each in done if each.differing]
    total = sum(len(each.moments) for each in done)
    print(f"{total} kills in {len(done)} rounds: {len(done) - len(bad)} rounds equal, {len(bad)} not")
    return 1 if bad else 0


def told(result: Round) -> str:
    """What a round came to, for a person."""
    met = ", ".join(f"{name} {count}" for name, count in sorted(result.within.items()))
    verdict = f"DIFFERS in {', '.join(result.differing)}" if result.differing else "equal to the calm run"
    cut = f" of the same batches {result.own_batches}" if result.own_batches else ""
    return (
        f"{result.group} on {result.lake}: {len(result.moments)} kills in {result.seconds:.0f} s, tables "
        f"{verdict}{cut}; within a batch of: {met}"
    )


if __name__ == "__main__":
    sys.exit(main())
