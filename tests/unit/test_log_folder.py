"""Where a run in the foreground lets Spark log: never where somebody else could have it written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from spark_jobs.console import running


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, in which everybody may make some."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_it_is_one_folder_for_each_user_and_a_file_for_each_process(shared: Path) -> None:
    file = running._log_file()
    assert file == shared / f"tidemark-{os.getuid()}" / f"driver-{os.getpid()}.log"
    assert mode(file.parent) == "700"
    running._log_folder.cache_clear()
    assert running._log_file() == file, "as in another process"


def test_a_link_in_its_place_is_not_followed(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    elsewhere.chmod(0o700)
    (elsewhere / "driver-1.log").write_text("somebody's")
    os.utime(elsewhere / "driver-1.log", (0, 0))
    (shared / f"tidemark-{os.getuid()}").symlink_to(elsewhere)
    assert_private(running._log_file())
    assert [path.name for path in elsewhere.iterdir()] == ["driver-1.log"]


def test_a_folder_that_others_may_enter_is_not_used(shared: Path) -> None:
    folder = shared / f"tidemark-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert_private(running._log_file())
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the user who runs this, but not of the one that it is named after."""
    (shared / f"tidemark-{os.getuid() + 1}").mkdir(mode=0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    file = running._log_file()
    assert file.parent.name != f"tidemark-{os.getuid()}"
    assert mode(file.parent) == "700"


def assert_private(file: Path) -> None:
    assert file.parent.name.startswith(f"tidemark-{os.getuid()}-")
    assert mode(file.parent) == "700"
    assert not file.parent.is_symlink()
    assert running._log_file() == file, "asked for again, it is the same"
