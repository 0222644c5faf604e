"""The whole way from JSON files to bronze to hourly windows: Tidemark beside plain PySpark and PyFlink.

`python -m benchmarks.files_to_windows` runs the three programs of `contenders/` in turns over the same files, plain
PySpark also with Tidemark's settings, each in a process of its own, and prints medians of three: wall time from the
start of the process to its end, processor time of all its processes (Java and Python, also those that end on the way),
time to the first commit of bronze, peak memory, and the milliseconds from one commit to the next of the later half.
After each run DuckDB compares what it wrote with the files.

The input is made once by the simulator: three million sales of one day in 20 files of JSON lines, in order of arrival.
As usual with it, 20 % of the events are out of order by up to 90 seconds, 0.5 % are late and 1 % come twice. Late ones
come six to twelve hours after their time: Spark judges an event of a batch by the watermark of the batch before, and
the day is read in five. Only 0.02 % cannot be read (usually 0.2 %), and none is of the future: such a one would move
the watermark of a program that does not set it aside, which would then drop all that follows.

`--rows 60000 --files 300 --files-a-batch 1` measures small batches, warm. Tidemark's windows read bronze while the
ingest writes it; with `--apart` after that, as plain PySpark does, so that the milliseconds of each are its own.

`--trees A B` measures the Tidemark of other checkouts, each named by its folder, in the same rounds; `--settings-of A`
plain PySpark with the settings that another checkout's sessions have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from rich.console import Console

from benchmarks.measuring import CACHE, Column, Figures, compared, in_turns, run_to_its_end
from infra.setup_jars import JarSet, SetupError, fetch, find_java, pyspark_jars
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.tables import beside
from spark_jobs.simulator import Disorder, Shop, simulate_files

HERE = Path(__file__).resolve().parents[1]
CONTENDERS = Path(__file__).with_name("contenders")
PYFLINK = "apache-flink==2.3.0"
PYFLINK_JARS = JarSet(CONTENDERS / "pyflink-jars.txt", CACHE / "pyflink-jars")
HEAP = "2g"
SETTINGS = {"TIDEMARK_MASTER": "local[2]", "TIDEMARK_SHUFFLE_PARTITIONS": "2", "TIDEMARK_DRIVER_MEMORY": HEAP}
"""Of Tidemark and of plain PySpark; the memory is Tidemark's default."""

FILES, SECONDS_OF_A_DAY = 20, 86_400
DISORDER = Disorder(late_after="6 hours", late_by="12 hours", malformed=0.0002, future=0)

CHOICES = ("plain", "tuned", "pyflink", "tidemark")

SALE = {"product_id": "VARCHAR", "quantity": "INT", "unit_price": "DECIMAL(10, 2)", "sold_at": "TIMESTAMPTZ"}
"""What DuckDB reads of a line."""

COLUMNS = (
    Column("wall s", "seconds"),
    Column("CPU s", "processor"),
    Column("first commit s", "reached"),
    Column("peak GB", "peak_gb", digits=2),
    Column("ms to bronze", "to_bronze", digits=0),
    Column("ms to windows", "to_windows", digits=0),
)


class WrongResultError(Exception):
    """A program has not computed what it should have; the message says what."""


@dataclass(frozen=True)
class Contender:
    """One program.

    Attributes:
        command: that runs it; a folder and the number of files a batch are added, then `options`.
        environment: variables that it needs.
        first_commit: what is there once bronze has rows; a pattern below the folder.
        check: of the input and what the program wrote; returns what is to be told of it.
        options: of the command.
        by_commit: whether its tables tell when each batch was committed.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    first_commit: str
    check: Callable[[Path, Path], str]
    options: tuple[str, ...] = ()
    by_commit: bool = True


def prepare(rows: int, files: int) -> Path:
    """A folder with the files in `sales/`, and what is right in `expected.parquet`; made once.

    Args:
        rows: how many sales.
        files: in so many files.

    Raises:
        WrongResultError: if DuckDB reads other events in the files than the simulator says it wrote.
    """
    root = (CACHE / (f"files-{rows}" if files == FILES else f"files-{rows}-{files}")).absolute()
    if (root / "expected.parquet").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    shop = Shop(
        streams=("sales",),
        start=datetime(2026, 1, 1, tzinfo=UTC),
        rate=None,
        density=rows / SECONDS_OF_A_DAY,
        disorder=DISORDER,
    )
    made = simulate_files(shop, out=str(root), rows=rows, rows_per_file=-(-rows // files))
    shutil.rmtree(root / "_truth")
    valid = "product_id IS NOT NULL AND quantity >= 1 AND unit_price >= 0 AND sold_at IS NOT NULL"
    lines = f"read_ndjson('{root}/sales/*.json', columns = {SALE}, ignore_errors = true)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        connection.execute(f"CREATE TABLE expected AS {_by_hour(f'(FROM {lines} WHERE {valid})')}")
        found = connection.execute("SELECT sum(events) FROM expected").fetchone()
        if found != (made.rows - made.malformed,):
            raise WrongResultError(f"{root}: expected {made.rows - made.malformed} events in the files, found {found}")
        connection.execute(f"COPY expected TO '{root}/expected.parquet' (FORMAT parquet)")
    return root


def _by_hour(events: str) -> str:
    return f"""SELECT epoch_ms(date_trunc('hour', sold_at)) AS hour, product_id, count(*) AS events,
        sum(quantity) AS units, sum(quantity * unit_price) AS revenue FROM {events} GROUP BY ALL"""


def between_commits_ms(table: Path) -> float:
    """The median time from one commit of a table to the next, of the later half: the first ones compile code."""
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs[len(logs) // 2 :] for line in log.read_text().splitlines()]
    at_ms = [action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action]
    return statistics.median(after - before for before, after in itertools.pairwise(at_ms))


# --- what each has written, beside what is right ---


def _check_flink(root: Path, folder: Path) -> str:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW bronze AS FROM read_parquet('{folder}/bronze/sales/part-*')")
        connection.execute(f"CREATE VIEW hourly AS FROM read_parquet('{folder}/gold/hourly/part-*')")
        connection.execute("CREATE VIEW late AS FROM bronze WHERE false")
        return _compare(connection, root, all_closed=True)


def _check_delta(root: Path, folder: Path, *, with_late: bool) -> str:
    lake = Lake(str(folder))
    tables = {"bronze": "bronze.sales", "hourly": "gold.hourly"}
    tables["late"] = beside("gold.hourly", "late") if with_late else "bronze.sales"
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(f"all_{name}", open_table(lake, table).to_pyarrow_dataset())
            connection.execute(f"CREATE VIEW {name} AS FROM all_{name} WHERE {name != 'late' or with_late}")
        return _compare(connection, root, drops_late=not with_late)


def _compare(
    connection: duckdb.DuckDBPyConnection, root: Path, *, all_closed: bool = False, drops_late: bool = False
) -> str:
    """Compares bronze with the events of the files, and result and late events together with all of each window.

    Args:
        connection: which has `bronze`, `hourly` and `late`.
        root: has the input.
        all_closed: whether there must be a result of all windows; else of those that are closed.
        drops_late: events of closed windows may be missing.

    Raises:
        WrongResultError: if they differ.
    """
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE TABLE expected AS FROM read_parquet('{root}/expected.parquet')")
    connection.execute(f"""CREATE TABLE found AS
        SELECT hour, product_id, sum(events) AS events, sum(units) AS units, sum(revenue) AS revenue FROM (
            SELECT epoch_ms(window_start) AS hour, product_id, events, units, revenue FROM hourly
            UNION ALL SELECT hour, product_id, events, units, revenue FROM ({_by_hour("late")})) GROUP BY ALL""")
    closed = "expected" if all_closed else "expected WHERE hour IN (SELECT hour FROM found)"
    differs = ">" if drops_late else "<>"
    wrong_row = " OR ".join(f"coalesce(f.{n}, 0) {differs} coalesce(e.{n}, 0)" for n in ("events", "units", "revenue"))
    rows, right, late, hours, events, missing, wrong = connection.execute(f"""SELECT
        (SELECT count(*) FROM bronze), (SELECT sum(events) FROM expected), (SELECT count(*) FROM late),
        count(DISTINCT e.hour), sum(e.events), sum(e.events) - coalesce(sum(f.events), 0),
        count(*) FILTER ({wrong_row})
        FROM (FROM {closed}) e FULL JOIN found f USING (hour, product_id)""").fetchall()[0]
    if rows != right:
        raise WrongResultError(f"bronze: expected {right:,} rows, found {rows:,}")
    if not hours or wrong:
        raise WrongResultError(
            f"windows: of {hours} closed hours {wrong:,} rows are not as expected, {missing or 0:,} events are missing"
        )
    said = f"{rows:,} rows in bronze; {hours} hours of {events:,} events closed"
    return f"{said}, of which {missing:,} late ones dropped" if drops_late else f"{said}, {late:,} late ones kept"


# --- the programs ---


def tidemark(tree: Path, *options: str) -> Contender:
    """Tidemark of a checkout, on this one's Python; its two queries at once or, `apart`, one after the other."""
    return Contender(
        (sys.executable, str(CONTENDERS / "by_tidemark.py")),
        {**SETTINGS, "PYTHONPATH": str(tree)},
        # The first version of a table has no rows.
        "bronze/sales/_delta_log/00000000000000000001.json",
        lambda root, folder: _check_delta(root, folder, with_late=True),
        options,
    )


def plain(*options: str, tree: Path = HERE) -> Contender:
    """Plain PySpark, with the settings of the guides or, `tuned`, with those of a checkout's Tidemark."""
    return Contender(
        (sys.executable, str(CONTENDERS / "by_pyspark.py")),
        {**SETTINGS, "PYTHONPATH": str(tree)},
        "bronze/sales/_delta_log/00000000000000000000.json",
        lambda root, folder: _check_delta(root, folder, with_late=False),
        options,
    )


def pyflink(out: Console) -> Contender | None:
    """PyFlink, in an environment that is made once; None, and a word why, where it cannot be made."""
    home = CACHE.absolute() / "pyflink"
    try:
        if not (home / ".ready").exists() or (home / ".ready").read_text() != PYFLINK:
            out.print(f"Installing {PYFLINK} into {home} (once, two minutes) …")
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([str(home / "bin/pip"), "install", "--quiet", PYFLINK], check=True)
            (home / ".ready").write_text(PYFLINK)
        fetch(PYFLINK_JARS, find_java(), CACHE)
    except (subprocess.CalledProcessError, SetupError) as error:
        out.print(f"LEFT OUT: PyFlink; it could not be installed: {str(error).rstrip('.')}. The others are measured.")
        return None
    jars = [*PYFLINK_JARS.folder.absolute().glob("*.jar"), *pyspark_jars().glob("hadoop-client-*.jar")]
    return Contender(
        (str(home / "bin/python"), str(CONTENDERS / "by_pyflink.py")),
        {"JVM_ARGS": f"-Xmx{HEAP}", "HADOOP_CLASSPATH": os.pathsep.join(map(str, jars))},
        "bronze/sales/part-*",
        _check_flink,
        by_commit=False,
    )


def contenders(
    names: Sequence[str], trees: Sequence[Path], settings_of: Sequence[Path], out: Console, *, apart: bool
) -> dict[str, Contender]:
    """Those to be measured, by the name that the table shows."""
    options = ("apart",) if apart else ()
    found = {f"plain as {tree.resolve().name}": plain("tuned", tree=tree.resolve()) for tree in settings_of}
    if "plain" in names:
        found["plain"] = plain()
    if "tuned" in names:
        found["plain, tuned"] = plain("tuned")
    if "pyflink" in names and (by_flink := pyflink(out)) is not None:
        found["pyflink"] = by_flink
    if "tidemark" in names:
        found |= {
            f"tidemark {tree.resolve().name}" if trees else "tidemark": tidemark(tree.resolve(), *options)
            for tree in trees or [HERE]
        }
    return found


def ratios(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Each Tidemark to each of the others, and each other Tidemark to the first: label -> the two."""
    ours = [name for name in names if name.startswith("tidemark")]
    pairs = [(each, other) for other in names if other not in ours for each in ours]
    pairs += [(each, ours[0]) for each in ours[1:]]
    return {f"{above} ÷ {below}": (above, below) for above, below in pairs}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--files-a-batch", type=int, default=4, help="of Tidemark's ingest and plain PySpark's")
    parser.add_argument("--apart", action="store_true", help="Tidemark's windows begin when bronze is written")
    parser.add_argument("--trees", type=Path, nargs="+", default=[], help="checkouts of Tidemark, instead of this one")
    parser.add_argument("--settings-of", type=Path, nargs="+", default=[], help="checkouts, for plain PySpark")
    parser.add_argument("--only", choices=CHOICES, nargs="+", default=CHOICES)
    options = parser.parse_args()
    if len({tree.resolve().name for tree in options.trees}) < len(options.trees):
        parser.error("--trees: the checkouts are named by their folders, and two have the same name")
    out = Console(width=120)
    root = prepare(options.rows, options.files)
    # One for each processor writes a batch of bronze, so the windows read one commit a batch; of few rows one writes.
    files_a_commit = min(2, options.files_a_batch)
    measured = contenders(options.only, options.trees, options.settings_of, out, apart=options.apart)
    told: dict[str, str] = {}

    def run(name: str, folder: Path) -> Figures:
        each = measured[name]
        (folder / "landing").symlink_to(root)
        figures = run_to_its_end(
            [*each.command, str(folder), str(options.files_a_batch), str(files_a_commit), *each.options],
            each.environment,
            reached=lambda: any(folder.glob(each.first_commit)),
        )
        told[name] = each.check(root, folder)
        for figure, table in (("to_bronze", "bronze/sales"), ("to_windows", "gold/hourly")):
            figures[figure] = between_commits_ms(folder / table) if each.by_commit else math.nan
        return figures

    found = in_turns(list(measured), options.repeats, run)
    title = f"{options.rows:,} sales in {options.files} files, {options.files_a_batch} files a batch"
    out.print(compared(title, COLUMNS, found, ratios(list(measured))))
    for name, words in told.items():
        out.print(f"{name}: {words}")


if __name__ == "__main__":
    main()
