"""Real earthquakes, from files to results: `make verify DATA=folder`."""

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.operations.repair import execute as repair
from spark_jobs.plan.logical import build
from spark_jobs.spec import Aggregate, Files, Ingest, Late, Pipeline, Select, Sink, Table, Tumbling, Watermark
from tests.support import lakes
from tests.support.outside import data_file, run, write_files

pytestmark = pytest.mark.outside_data

DAY = timedelta(days=1)
ROWS_PER_FILE = 600
QUAKES = 8_826
LATE = {"0 seconds": 3_487, "1 hour": 3_469, "1 day": 3_235, "10 days": 469}
DELAYS = {"0 seconds": timedelta(0), "1 hour": timedelta(hours=1), "1 day": DAY, "10 days": 10 * DAY}

# The same text runs in the stream and in DuckDB.
REGION = "nullif(trim(regexp_extract(place, ',([^,]*)$', 1)), '')"
MAGNITUDE_CLASS = (
    "CASE WHEN mag IS NULL THEN 'none' WHEN mag < 2 THEN 'micro' WHEN mag < 4 THEN 'minor' ELSE 'felt' END"
)
QUAKE_COLUMNS = "time,latitude,longitude,depth,mag,magType,nst,gap,dmin,rms,net,id,updated,place,type"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@dataclass(frozen=True)
class Earthquakes:
    """The earthquakes in order of `updated`, and what became of them."""

    rows: Sequence[Mapping[str, str]]
    lake: Lake
    pipelines: Mapping[str, Pipeline]

    @cached_property
    def batches(self) -> list[Sequence[Mapping[str, str]]]:
        return [self.rows[start : start + ROWS_PER_FILE] for start in range(0, len(self.rows), ROWS_PER_FILE)]

    def on_time(self, delay: timedelta) -> list[Mapping[str, str]]:
        """The split in plain Python: a row of batch N is judged by W(N-1), which knows the batches up to N-2."""
        start = datetime(1970, 1, 1, tzinfo=UTC)
        newest = [start]
        for batch in self.batches:
            newest.append(max(newest[-1], *(instant(row["time"]) for row in batch)))
        kept = []
        for number, batch in enumerate(self.batches):
            watermark = max(newest[max(number - 1, 0)] - delay, start) if number else start
            for row in batch:
                day = instant(row["time"]).replace(hour=0, minute=0, second=0, microsecond=0)
                if day + DAY > watermark:
                    kept.append(row)
        return kept

    def totals(self, name: str) -> Totals:
        return Totals.of(row for _, row in lakes.ledger(self.lake, self.pipelines[name]))

    def counts(self, name: str) -> list[tuple[object, ...]]:
        found = lakes.rows(self.lake, f"gold.{name}")
        columns = ("window_start", "region", "magnitude_class", "quakes")
        return sorted((tuple(row[column] for column in columns) for row in found), key=repr)


def by_duckdb(rows: Sequence[Mapping[str, str]]) -> list[tuple[object, ...]]:
    quakes = pa.table(
        {
            "t": pa.array([instant(row["time"]) for row in rows], lakes.TIMESTAMP),
            "mag": [float(row["mag"]) if row["mag"] else None for row in rows],
            "place": [row["place"] for row in rows],
        }
    )
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("quakes", quakes)
    counted = connection.execute(
        f"SELECT date_trunc('day', t), {REGION}, {MAGNITUDE_CLASS}, count(*) FROM quakes GROUP BY ALL"
    )
    return sorted(((day.astimezone(UTC), *rest) for day, *rest in counted.fetchall()), key=lambda row: repr(tuple(row)))


def daily_quakes(name: str, *, mode: str = "append", **watermark: object) -> Pipeline:
    return Pipeline(
        name=name,
        source=Table("bronze.quakes", max_files_per_trigger=1),
        event_time="time",
        watermark=Watermark(**watermark),
        steps=(
            Select({"region": REGION, "magnitude_class": MAGNITUDE_CLASS}),
            Aggregate(window=Tumbling("1 day"), by=("region", "magnitude_class"), measures={"quakes": "count(*)"}),
        ),
        sink=Sink(f"gold.{name}", mode=mode),
    )


@pytest.fixture(scope="module")
def earthquakes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Earthquakes:
    header, *lines = data_file("usgs_earthquakes_2015-08.csv").read_text().splitlines()
    assert header == QUAKE_COLUMNS
    names = header.split(",")
    parsed = list(csv.DictReader(lines, fieldnames=names))
    order = sorted(range(len(parsed)), key=lambda index: (instant(parsed[index]["updated"]), index))
    folder = tmp_path_factory.mktemp("quakes")
    files = [
        "\n".join([header, *(lines[index] for index in order[start : start + ROWS_PER_FILE])]).encode()
        for start in range(0, len(order), ROWS_PER_FILE)
    ]
    write_files(folder / "landing", files, "csv")
    numbers = ("latitude", "longitude", "depth", "mag", "nst", "gap", "dmin", "rms")
    times = ("time", "updated")
    types = {name: "TIMESTAMP" if name in times else "DOUBLE" if name in numbers else "STRING" for name in names}
    ingest = Ingest(
        name="ingest_quakes",
        source=Files(str(folder / "landing"), format="csv", max_files_per_trigger=1),
        columns=types,
        event_time="time",
        event_id="id",
        arrival_time="updated",
        sink=Sink("bronze.quakes"),
    )
    pipelines = {
        **{f"kept_{index}": daily_quakes(f"kept_{index}", delay=delay) for index, delay in enumerate(DELAYS)},
        "dropped": daily_quakes("dropped", delay="1 hour", late=Late.DROP),
        "updated": daily_quakes("updated", mode="update", delay="1 hour", grace="23 hours", late=Late.UPDATE),
    }
    lake = Lake(str(folder / "lake")).ensure_exists()
    run(spark, lake, [ingest, *pipelines.values()])
    return Earthquakes([parsed[index] for index in order], lake, pipelines)


def test_every_earthquake_is_in_bronze_one_file_a_batch(earthquakes: Earthquakes) -> None:
    quakes = [row for row in lakes.rows(earthquakes.lake, "bronze.quakes") if not row["_heartbeat"]]
    assert len(quakes) == QUAKES == len(earthquakes.rows)
    assert len(lakes.rows(earthquakes.lake, "bronze.quakes__quarantine")) == 0
    in_order = sorted(quakes, key=lambda row: row["_ingest_seq"])
    assert [row["_event_id"] for row in in_order] == [row["id"] for row in earthquakes.rows]
    ledger = lakes.ledger(earthquakes.lake, earthquakes.pipelines["kept_0"])
    read = [row["read"] for _, row in ledger]
    # After the data the heartbeat that closes the input, and the batch without data that it causes.
    assert read == [*(len(batch) for batch in earthquakes.batches), 0, 0]


@pytest.mark.parametrize("delay", DELAYS)
def test_the_late_earthquakes_are_those_that_plain_python_finds(earthquakes: Earthquakes, delay: str) -> None:
    name = f"kept_{list(DELAYS).index(delay)}"
    totals = earthquakes.totals(name)
    on_time = earthquakes.on_time(DELAYS[delay])
    assert len(earthquakes.rows) - len(on_time) == LATE[delay]
    assert (totals["late"], totals["on_time"], totals["read"]) == (LATE[delay], len(on_time), QUAKES)
    late = {row["_event_id"] for row in lakes.rows(earthquakes.lake, f"gold.{name}__late")}
    assert late == {row["id"] for row in earthquakes.rows} - {row["id"] for row in on_time}
    assert totals.rest(build(earthquakes.pipelines[name]).equations[-1]) == 0


@pytest.mark.parametrize("delay", DELAYS)
def test_daily_counts_of_what_was_on_time_equal_duckdbs(earthquakes: Earthquakes, delay: str) -> None:
    expected = by_duckdb(earthquakes.on_time(DELAYS[delay]))
    assert earthquakes.counts(f"kept_{list(DELAYS).index(delay)}") == [tuple(row) for row in expected]


@pytest.mark.parametrize(("name", "waits"), [("dropped", "1 hour"), ("updated", "1 day")])
def test_counted_and_late_are_all_under_each_policy(earthquakes: Earthquakes, name: str, waits: str) -> None:
    totals, counts = earthquakes.totals(name), earthquakes.counts(name)
    assert counts == [tuple(row) for row in by_duckdb(earthquakes.on_time(DELAYS[waits]))]
    assert (totals["late"], totals["late"] + sum(row[-1] for row in counts)) == (LATE[waits], QUAKES)


def test_the_ledger_of_every_pipeline_balances(earthquakes: Earthquakes) -> None:
    for pipeline in earthquakes.pipelines.values():
        lakes.assert_balanced(earthquakes.lake, pipeline)


@pytest.mark.parametrize("delay", ["0 seconds", "10 days"])
def test_on_time_counts_and_a_repair_give_the_counts_of_all_earthquakes(
    spark: SparkSession, earthquakes: Earthquakes, tmp_path: Path, delay: str
) -> None:
    name = f"kept_{list(DELAYS).index(delay)}"
    shutil.copytree(earthquakes.lake.uri, tmp_path / "lake")
    repaired = replace(earthquakes, lake=Lake(str(tmp_path / "lake")).ensure_exists())
    target, plan = repair.plan_repair(repaired.lake, repaired.pipelines[name])
    assert plan.late == LATE[delay]
    done = repair.execute(spark, target, plan)
    assert done.repaired == LATE[delay]
    assert repaired.counts(name) == [tuple(row) for row in by_duckdb(repaired.rows)]
    lakes.assert_balanced(repaired.lake, repaired.pipelines[name])
