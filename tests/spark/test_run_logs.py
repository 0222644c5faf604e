"""Where the log of `tidemark run` goes."""

import io
import os
import tempfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from spark_jobs.console import running
from spark_jobs.lake import Lake


def test_a_run_has_a_log_of_its_own_users_and_those_older_than_a_month_go(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuse(_: Lake) -> None:
        os.write(2, b"no Java\n")
        raise RuntimeError("it does not start")

    monkeypatch.setattr(running, "build_session", refuse)
    folder = tmp_path / f"tidemark-{os.getuid()}"
    folder.mkdir()
    logs = {days: folder / f"driver-{days}.log" for days in (29, 31)}
    for days, log in logs.items():
        log.touch()
        os.utime(log, (then := time.time() - days * 86_400, then))

    said = Console(file=io.StringIO(), width=300)
    with pytest.raises(RuntimeError, match="it does not start"), running.session(lake, said):
        pass
    mine = folder / f"driver-{os.getpid()}.log"
    assert f"its log: {mine}" in said.file.getvalue()  # type: ignore[attr-defined]
    assert mine.read_text() == "no Java\n"
    assert {path.name for path in folder.iterdir()} == {logs[29].name, mine.name}
