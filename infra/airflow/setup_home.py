"""Prepare Airflow's home and database: the administrator's password, the tables, and the pool of batch jobs.

Run as ``python -m infra.airflow.setup_home`` before Airflow's services start. The simple auth manager reads passwords
from a file that it opens for writing, so a mounted secret, which cannot be written, does not do; this writes the file
from ``AIRFLOW_ADMIN_PASSWORD``, at every start: a changed password holds from then on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PASSWORDS_FILE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
_POOL = ("tidemark_batch", "1", "backfills and repairs: one at a time")
"""Tasks of a pool that does not exist stay queued."""

_USERS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"


def write_password(environment: Mapping[str, str]) -> Path:
    """Write the password of the one user that the settings name.

    Args:
        environment: Airflow's settings, and ``AIRFLOW_ADMIN_PASSWORD``.

    Returns:
        The file; only its owner may read it.
    """
    user = environment[_USERS].partition(":")[0]
    file = Path(environment[_PASSWORDS_FILE])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_text(json.dumps({user: environment["AIRFLOW_ADMIN_PASSWORD"]}) + "\n", encoding="utf-8")
    return file


def main() -> int:
    """Run the set-up; returns the exit code."""
    missing = [name for name in (_PASSWORDS_FILE, _USERS, "AIRFLOW_ADMIN_PASSWORD") if not os.environ.get(name)]
    if missing:
        print(f"setup_home: expected {', '.join(missing)}, got nothing. Nothing was changed.", file=sys.stderr)
        return 1
    write_password(os.environ)
    for command in (["airflow", "db", "migrate"], ["airflow", "pools", "set", *_POOL]):
        if code := subprocess.run(command, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
