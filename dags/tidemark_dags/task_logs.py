"""Logs that Airflow keeps of its tasks, which it never removes."""

import time
from pathlib import Path

from tidemark_dags.tasks import log


def remove_old(folder: Path | None = None, *, now: float | None = None) -> int:
    """Removes log files that are older than what is kept, and folders that are then empty.

    Args:
        folder: of Airflow's logs; None: as it is configured.
        now: the time, in seconds since 1970; None: the clock.

    Returns:
        How many files were removed.
    """
    from spark_jobs.lake.settings import Retention
    from spark_jobs.spec.durations import format_duration

    if folder is None:
        from airflow.configuration import conf

        folder = Path(conf.get("logging", "base_log_folder"))
    kept = Retention().airflow_logs
    before = (time.time() if now is None else now) - kept.total_seconds()
    removed = size = 0
    for path in sorted(folder.rglob("*"), reverse=True):
        try:
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()) and path.stat().st_mtime < before:
                    path.rmdir()
            elif path.lstat().st_mtime < before:
                size += path.lstat().st_size
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # somebody else is at it
    log(f"{removed:,} logs older than {format_duration(kept)} removed from {folder} ({size / 1e6:,.1f} MB).")
    return removed
