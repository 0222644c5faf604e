"""Logs of Airflow's tasks: how they are written; old ones go, with the folders that are then empty."""

import logging
import os
import re

import pytest
from tidemark_dags.task_logs import remove_old
from tidemark_dags.tasks import log

NOW, DAY = 1_800_000_000, 86_400


def test_logs_that_are_older_than_what_is_kept_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_KEEP_AIRFLOW_LOGS", "3 days")
    old, new = (
        tmp_path / "dag_id=a" / "run_id=1" / "attempt=1.log",
        tmp_path / "dag_id=a" / "run_id=2" / "attempt=1.log",
    )
    for path, age in ((old, 4), (new, 2)):
        path.parent.mkdir(parents=True)
        path.write_text("said")
        for each in (path, path.parent):
            os.utime(each, (NOW - age * DAY, NOW - age * DAY))
    assert remove_old(tmp_path, now=NOW) == 1
    assert not old.exists()
    assert new.exists()
    old.parent.mkdir(exist_ok=True)
    os.utime(old.parent, (NOW - 4 * DAY, NOW - 4 * DAY))
    assert remove_old(tmp_path, now=NOW) == 0
    assert not old.parent.exists()


def test_long_lines_are_wrapped_and_a_link_stays_in_one_piece(caplog):
    link = f"https://store.example/lake?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature={'a' * 64}"
    with caplog.at_level(logging.INFO, "tidemark"):
        log(f"  {'word ' * 30}\n  link, for 12 hours: {link}")
    *wrapped, last = caplog.messages
    assert last == f"    {link}"
    assert len(wrapped) == 3
    assert all(len(line) <= 110 for line in wrapped)


@pytest.mark.parametrize(
    "text",
    [
        "{} `tidemark resume top_products --lake /data/lake` tries the batch again",
        "{} What was saved before: tidemark savepoints list --lake /data/lake",
    ],
)
def test_a_command_is_not_broken_over_two_lines(caplog, text):
    command = re.search(r"tidemark [^`]*lake /data/lake", text)[0]
    for length in range(60, 110):
        caplog.clear()
        with caplog.at_level("INFO", logger="tidemark"):
            log(text.format("word " * (length // 5) + "x" * (length % 5)))
        assert any(command in line for line in caplog.messages), length
