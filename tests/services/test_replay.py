"""A replay of quarantined rows on a real MinIO, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.lake import Lake
from tests.support import lakes
from tests.support.process import REPOSITORY

DEFINITION = """
from spark_jobs.spec import Files, Ingest, OneOf, Sink

mine = Ingest(
    name="ingest_mine",
    source=Files({landing!r}),
    columns={{"id": "BIGINT", "store": "STRING", "t": "TIMESTAMP"}},
    event_time="t",
    rules=(OneOf("store", {stores!r}),),
    sink=Sink("bronze.mine"),
)
"""


# On a folder: tests/spark/test_replay.py::test_rows_that_pass_by_now_arrive_once_however_often_a_replay_dies
# Commits to MinIO:
# tests/services/test_conditional_create.py::test_no_acknowledged_commit_of_two_processes_is_lost[minio]
@pytest.mark.long
def test_a_replay_on_minio_moves_rows_once(tmp_path: Path, bucket: str) -> None:
    landing, file = tmp_path / "landing", tmp_path / "mine.py"
    landing.mkdir()
    rows = [{"id": number, "store": "abc"[number % 3], "t": "2026-01-01T00:00:00Z"} for number in range(30)]
    (landing / "1.json").write_text("\n".join(map(json.dumps, rows)) + "\nnone\n")
    lake = Lake(f"s3a://{bucket}/lake")

    def tidemark(*arguments: str) -> None:
        command = [sys.executable, "-m", "spark_jobs", *arguments, "--lake", lake.uri]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr

    file.write_text(DEFINITION.format(landing=str(landing), stores=("a", "b")))
    tidemark("run", str(file), "--until-caught-up")
    file.write_text(DEFINITION.format(landing=str(landing), stores=("a", "b", "c")))
    tidemark("replay", str(file))
    assert sorted(row["id"] for row in lakes.rows(lake, "bronze.mine")) == list(range(30))
    assert [row["raw"] for row in lakes.rows(lake, "bronze.mine__quarantine")] == ["none"]
    told = CliRunner().invoke(app, ["ledger", str(file), "--lake", lake.uri])
    assert told.exit_code == 0
    assert "rows read again 11 = replayed 10 + set aside as before 1, 10 taken out" in told.stdout
