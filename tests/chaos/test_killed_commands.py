"""Commands that rewrite tables, killed for real in the middle of it; the next one ends what they began."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.checkpoints.swapping import built_beside
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import Selection
from spark_jobs.operations.rebuild.plan import unfinished
from spark_jobs.operations.replay.execute import begin
from spark_jobs.operations.replay.plan import plan_replay
from tests.chaos import kills
from tests.spark import test_bootstrap as bootstraps
from tests.spark import test_replay as replays
from tests.support import lakes
from tests.support.clicks import HOPPING, assert_same, events, feed, pipeline, run_repair, table

DYING = str(Path(__file__).with_name("dying_command.py"))


def commit_file(lake: Lake, table: str, version: int) -> Path:
    return Path(lake.table_path(table)) / "_delta_log" / f"{version:020d}.json"


# In tests/spark a replay dies at each of its steps, within the process of the test.
@pytest.mark.long
def test_a_replay_killed_around_its_last_commit_moves_each_row_once(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing, good, slices = tmp_path / "landing", 40, 10
    wrong = [(reason, number) for number, reason in enumerate([*replays.FIVE_KINDS] * 200, start=good)]
    lines = [replays.event(number) for number in range(good)]
    replays.write(landing, "first", [*lines, *(replays.FIVE_KINDS[reason](number) for reason, number in wrong)])
    replays.ingest(spark, lake, replays.an_ingest(landing))
    now = replays.an_ingest(landing, replays.AS_MEANT)
    # As the command notes it, but in slices of a hundred rows instead of a hundred thousand.
    noted = begin(lake, plan_replay(lake, now, Selection()), by="ada", comment="the rules were wrong", slice_rows=100)
    before = open_table(lake, "bronze.events").version()
    # What the command names itself is among what is carried out before: nothing is left of it then.
    command = [sys.executable, "-m", "spark_jobs", "replay", lakes.a_file(tmp_path, now), "--reason", "one_of(store)"]
    command += ["--lake", lake.uri]
    passes = [number for reason, number in wrong if reason != "unparseable"]
    passes = [
        number for number in passes if number not in {n for r, n in wrong if r.startswith("between") and n % 2 == 0}
    ]

    kills.run_until(command, lambda: commit_file(lake, "bronze.events", before + 2).exists())
    assert before + 2 <= open_table(lake, "bronze.events").version() < before + slices, "in the middle"
    assert open_replay(lake, now.name) == noted

    kills.run_until(command, lambda: commit_file(lake, "bronze.events", before + slices).exists())
    assert replays.ids(lake) == sorted([*range(good), *passes])
    assert replays.reasons(lake) == Counter(dict.fromkeys(replays.FIVE_KINDS, 200)), "in both tables"
    assert open_replay(lake, now.name) == noted
    replays.assert_balanced(lake, now)

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert open_table(lake, "bronze.events").version() == before + slices
    assert replays.ids(lake) == sorted([*range(good), *passes])
    assert replays.reasons(lake) == Counter({"unparseable": 200, "between(units, 1..)": 1000 - 200 - len(passes)})
    assert open_replay(lake, now.name) is None
    replays.assert_numbers_grow(lake)
    (told,) = [text for text in replays.assert_balanced(lake, now) if text.startswith("replay-")]
    assert f"rows read again 1,000 = replayed {len(passes)} + set aside as before {1000 - len(passes)}" in told


# The same steps within the process of the test: tests/spark/test_bootstrap.py.
@pytest.mark.long
def test_a_rebuild_killed_in_its_swap_is_finished_by_the_next_one(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    before, batches = pipeline(mode="update", top=True), events(7)
    bronze = feed(lake, batches[:3])
    lakes.run(spark, lake, before)
    old = table(lake)
    changed = bootstraps.with_aggregate(before, window=HOPPING)
    arguments = ["rebuild", lakes.a_file(tmp_path, changed), "--yes", "--lake", lake.uri]
    dying = [sys.executable, DYING, *arguments]

    def dies_after(step: str) -> None:
        kills.run_until_death(dying, {"DIES_AFTER": f"lake.checkpoints.swapping:{step}"})

    # The groups have their new rows, the result that is picked out of them its old ones.
    dies_after("_overwrite")
    assert table(lake) == old
    assert unfinished(lake, changed) is None
    dies_after("begin_next_epoch")
    assert unfinished(lake, changed) is not None
    swapped = table(lake)
    assert swapped != old
    assert built_beside(lake, "gold.activity")

    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs", *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert unfinished(lake, changed) is None
    assert not built_beside(lake, "gold.activity")
    bronze.append(batches[3])
    bootstraps.run(spark, lake, changed)
    run_repair(spark, lake, changed)
    assert_same(table(lake), bootstraps.expected(lake, changed))
    bootstraps.assert_sound(spark, lake, changed)
