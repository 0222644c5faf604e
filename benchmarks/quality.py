"""What data quality costs, as ratios measured side by side in one run.

`python -m benchmarks.quality` prints:

- a check of ten expectations on the rows of a table that has gained a million, without a JVM and warm, beside the same
  counts by hand: DuckDB over the same files, and pandas;
- the memory of a process that checks 500 times;
- an ingest of a million lines of JSON with ten row rules, beside the same without them, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.late_split import SETTINGS
from benchmarks.measuring import CACHE
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.quality.checking import check
from spark_jobs.spark.session import build_session
from spark_jobs.spec import Between, Files, Ingest, Matches, NotNull, OneOf, RowRule, Satisfies, Sink

ROWS = 1_000_000
COLUMNS = {"id": "STRING", "shop": "STRING", "units": "INT", "price": "DOUBLE", "sold_at": "TIMESTAMP"}
SHOPS = tuple(f"shop-{number}" for number in range(8))
RULES: tuple[RowRule, ...] = (
    NotNull("shop"),
    NotNull("units"),
    NotNull("price"),
    Between("units", min=1, max=20),
    Between("price", min=0, max=1000),
    OneOf("shop", SHOPS),
    Matches("id", "[a-z]-[0-9]+"),
    Satisfies("not too dear", "units * price < 20000"),
    Satisfies("after the first", "sold_at >= TIMESTAMP '2026-01-01 00:00:00Z'"),
    Satisfies("a round price or none", "price IS NULL OR price = round(price, 2)"),
)
BY_HAND = """SELECT count(*) FILTER (shop IS NULL), count(*) FILTER (units IS NULL), count(*) FILTER (price IS NULL),
count(*) FILTER (units NOT BETWEEN 1 AND 20), count(*) FILTER (price NOT BETWEEN 0 AND 1000),
count(*) FILTER (shop NOT IN ({shops})), count(*) FILTER (NOT regexp_full_match(id, '[a-z]-[0-9]+')),
count(*) FILTER (NOT units * price < 20000), count(*) FILTER (sold_at < TIMESTAMPTZ '2026-01-01 00:00:00Z'),
count(*) FILTER (NOT (price IS NULL OR price = round(price, 2))), min(sold_at), max(sold_at)
FROM read_parquet({files})"""


def definition(rules: tuple[RowRule, ...], source: str = "landing/sales") -> Ingest:
    """An ingest of the measured rows."""
    return Ingest(
        name="bench",
        source=Files(source),
        columns=COLUMNS,
        event_time="sold_at",
        rules=rules,
        max_future=timedelta(days=3650),
        sink=Sink("bronze.bench"),
    )


def rows() -> pa.Table:
    """A million rows, the same each time; a few break a rule."""
    random = np.random.default_rng(1)
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    units = random.integers(1, 20, ROWS).astype("int32")
    units[:7] = 0
    return pa.table(
        {
            "id": pa.array([f"a-{number}" for number in range(ROWS)]),
            "shop": pa.array(random.choice(SHOPS, ROWS)),
            "units": pa.array(units),
            "price": pa.array(np.round(random.uniform(0, 900, ROWS), 2)),
            "sold_at": pa.array(start + np.arange(ROWS) * 1000, pa.timestamp("us", "UTC")),
        }
    )


def no_spark() -> Any:
    """A check of so few rows needs none."""
    raise AssertionError("Spark is not needed")


def warm(what: Callable[[], object], times: int = 7) -> float:
    """The median of some runs after the first two, in seconds."""
    taken = []
    for _ in range(times + 2):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def measure_suite(out: Console) -> None:
    """A check beside the same counts by hand."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        lake = Lake(folder).ensure_exists()
        whole = rows()
        for part in range(4):
            write_deltalake(lake.table_uri("bronze.bench"), whole.slice(part * ROWS // 4, ROWS // 4), mode="append")
        suite = definition(RULES)
        files = DeltaTable(lake.table_uri("bronze.bench")).file_uris()
        names = ", ".join(f"'{name}'" for name in files)
        sql = BY_HAND.format(shops=", ".join(f"'{shop}'" for shop in SHOPS), files=f"[{names}]")

        def by_duckdb() -> object:
            with duckdb.connect() as connection:
                return connection.execute(sql).fetchall()

        def by_pandas() -> object:
            f = DeltaTable(lake.table_uri("bronze.bench")).to_pyarrow_table().to_pandas()
            return (
                [int(f[name].isna().sum()) for name in ("shop", "units", "price")],
                int((~f["units"].between(1, 20)).sum()),
                int((~f["price"].between(0, 1000)).sum()),
                int((~f["shop"].isin(SHOPS)).sum()),
                int((~f["id"].str.fullmatch("[a-z]-[0-9]+")).sum()),
                int((~(f["units"] * f["price"] < 20000)).sum()),
                int((f["sold_at"] < datetime(2026, 1, 1, tzinfo=UTC)).sum()),
                int((f["price"] != f["price"].round(2)).sum()),
            )

        ours = warm(lambda: check(lake, suite, no_spark, all_rows=True))
        duck, pandas = warm(by_duckdb), warm(by_pandas)
        out.print(
            f"check {ours:.2f} s; by hand: DuckDB {duck:.2f} s ({ours / duck:.1f} x), pandas {pandas:.2f} s "
            f"({ours / pandas:.1f} x)"
        )
        measure_memory(out, lake, whole)


def measure_memory(out: Console, lake: Lake, whole: pa.Table) -> None:
    """What a process takes that checks a table again and again."""
    shutil.rmtree(Path(lake.uri) / "bronze")
    write_deltalake(lake.table_uri("bronze.bench"), whole.slice(0, 20_000))
    me, resident = psutil.Process(), []
    for number in range(1, 501):
        check(lake, definition(RULES), no_spark, all_rows=True)
        if number % 100 == 0:
            resident.append(round(me.memory_info().rss / 1e6))
    out.print(f"memory after each 100 of 500 checks, MB: {resident}")


def landing() -> Path:
    """The rows as JSON lines in ten files, and some that are none: so there is a quarantine also without rules.

    Made once.
    """
    made = CACHE / "quality-lines"
    if not (made / "done").exists():
        shutil.rmtree(made, ignore_errors=True)
        (made / "in").mkdir(parents=True)
        whole = rows()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for part in range(10):
                connection.register("part", whole.slice(part * ROWS // 10, ROWS // 10))
                connection.execute(f"COPY part TO '{made / 'in' / f'{part}.json'}' (FORMAT json)")
        with (made / "in" / "0.json").open("a", encoding="utf-8") as file:
            file.write("no JSON\n" * 7)
        (made / "done").touch()
    return made / "in"


def ingest(spark: SparkSession, rules: int, source: str) -> float:
    """Seconds of an ingest with so many rules into a lake of its own."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        query = IngestQuery(spark, Lake(folder).ensure_exists(), definition(RULES[:rules], source))
        began = time.monotonic()
        query.start(until_caught_up=True).awaitTermination()
        return time.monotonic() - began


def measure_stream(out: Console, repeats: int) -> None:
    """An ingest with and without rules, in pairs in one JVM, each pair the other way round.

    The first two pairs compile code. The ratio is the median of those of the pairs: what slows the machine down for a
    while slows down both of a pair.
    """
    source = str(landing().absolute())
    found: dict[int, list[float]] = {0: [], len(RULES): []}
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        spark = build_session(Lake(folder).ensure_exists(), settings=SETTINGS)
        for turn in range(repeats + 2):
            for rules in sorted(found, reverse=turn % 2 == 1):
                found[rules].append(ingest(spark, rules, source))
        spark.stop()
    pairs = list(zip(*found.values(), strict=True))[2:]
    without, with_ = (statistics.median(taken) for taken in zip(*pairs, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    runs = "; ".join(f"{before:.1f} {after:.1f}" for before, after in pairs)
    out.print(
        f"ingest of {ROWS:,} lines: {without:.1f} s without rules, {with_:.1f} s with {len(RULES)} "
        f"({ratio:.2f} x); pairs {runs}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--only", choices=("suite", "stream"))
    options = parser.parse_args()
    out = Console(width=140)
    if options.only != "stream":
        measure_suite(out)
    if options.only != "suite":
        measure_stream(out, options.repeats)


if __name__ == "__main__":
    main()
