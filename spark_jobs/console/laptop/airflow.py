"""Airflow on this machine: how it is started, and its REST API as a user speaks to it."""

import contextlib
import json
import os
import secrets
import sqlite3
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from spark_jobs.console.laptop.ports import free_port
from spark_jobs.lake.errors import TidemarkError

USER = "admin"

# As in infra/airflow/setup_home.py and dags/tidemark_dags/batch.py, which import nothing of this.
POOL = "tidemark_batch"
POOL_USE = "backfills and repairs: one at a time"

# How long a writer waits for another one; SQLite's own five seconds are too short on a busy machine.
_LOCKED_S = 60

_NO_PROXY = ("NO_PROXY", "no_proxy")

DAGS = Path(__file__).resolve().parents[3] / "dags"


class AirflowError(TidemarkError):
    """Airflow does not run, or refuses what it was asked."""


def command(home: Path, tasks_port: int) -> list[str]:
    """The command that runs Airflow, with the API of its tasks on a port of its own."""
    program = Path(__file__).with_name("standalone.py")
    return [sys.executable, str(program), str(tasks_port), str(home)]


def environment(home: Path, port: int, tasks_port: int, *, lake: str) -> dict[str, str]:
    """The environment of Airflow: this process's own, and the settings for a small machine.

    Args:
        home: folder of its database, logs and password.
        port: of the web page and the REST API.
        tasks_port: of the API that its tasks speak to.
        lake: what its tasks look at.
    """
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_database(home)}?timeout={_LOCKED_S}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",  # as many processes are forked at the start; 32 by default
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{tasks_port}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # Each file takes a second of a core; by default all of them are read every 30 seconds.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
        # The scheduler is up before the API that its tasks speak to; by default they give up after seven seconds.
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "20",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "5",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        # A look that was killed with Airflow holds up the next one for so long; by default five minutes.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # And one that was queued when Airflow was killed, until the next search for such: every five minutes.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # Airflow's log servers listen on ports of their own, which another Airflow may hold.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "TIDEMARK_LAKE": lake,
        # Its tasks speak to it, not to a proxy.
        **{name: ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost"))) for name in _NO_PROXY},
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        # Airflow starts its parts by their program's name.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_HOME")}
    return {**inherited, **settings}


def prepare_home(home: Path) -> None:
    """Makes what Airflow finds at its start: its folder, the password and the database file, for nobody else to read.

    Readers and a writer of the database work side by side; the file remembers it. Otherwise each locks out the other,
    and on a busy machine Airflow's API then answers with errors.
    """
    private_folder(home)
    database = _database(home)
    if not database.exists():
        # What is left of one that was removed would be taken for the end of the new one.
        for rest in home.glob(f"{database.name}-*"):
            rest.unlink()
    database.touch(mode=0o600)
    database.chmod(0o600)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    _make_password(home)


def private_folder(folder: Path) -> None:
    """Makes a folder that only its owner may enter, or lets nobody else into one that there is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _make_password(home: Path) -> None:
    """Writes the password of `admin` where Airflow looks for it, which else would make one up and log it.

    One that others could read is not kept.
    """
    file = password_file(home)
    private = file.exists() and not stat.S_IMODE(file.stat().st_mode) & 0o077
    if private and password(home):
        return
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(json.dumps({USER: secrets.token_urlsafe(12)}) + "\n")


def _database(home: Path) -> Path:
    return home / "airflow.db"


def password_file(home: Path) -> Path:
    """Where the password of `admin` is, for nobody but its owner to read; the name is Airflow's."""
    return home / "simple_auth_manager_passwords.json.generated"


def password(home: Path) -> str | None:
    """The password of `admin`; None before the first start."""
    try:
        found: dict[str, str] = json.loads(password_file(home).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found.get(USER)


class Airflow:
    """The REST API.

    Args:
        home: where the password is.
        port: of the API.
    """

    def __init__(self, home: Path, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._home = home
        # Not through a proxy that the environment names: it runs on this machine.
        self._client = httpx.Client(base_url=self.address, timeout=30.0, trust_env=False)
        self._token: str | None = None

    def is_ready(self) -> bool:
        """Whether it answers, and its scheduler and DAG processor live."""
        try:
            health = self._client.get("/api/v2/monitor/health", timeout=5.0)
        except httpx.TransportError:
            return False
        if health.status_code != httpx.codes.OK:
            return False
        parts = health.json()
        return all(parts[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor"))

    def knows(self, dag: str) -> bool:
        """Whether the DAG has been read."""
        return self._send("GET", f"/api/v2/dags/{dag}").status_code == httpx.codes.OK

    def ensure_pool(self) -> None:
        """Makes the pool of backfills and repairs unless it is there: tasks of a pool that is not there never start.

        Raises:
            AirflowError: if Airflow refuses.
        """
        answer = self._send("POST", "/api/v2/pools", {"name": POOL, "slots": 1, "description": POOL_USE})
        if answer.is_error and answer.status_code != httpx.codes.CONFLICT:
            raise AirflowError(f"pool {POOL}: Airflow refuses it: {answer.text[:500]}")

    def trigger(self, dag: str, conf: Mapping[str, Any]) -> str:
        """Starts a run and gives its id.

        The id is chosen here: a request whose answer was lost is sent again, and starts no second run.

        Raises:
            AirflowError: if Airflow refuses, with its reason.
        """
        run_id = f"manual__{datetime.now(UTC).isoformat()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)}
        answer = self._send("POST", f"/api/v2/dags/{dag}/dagRuns", body)
        # Nobody else starts one of this id.
        if answer.is_error and answer.status_code != httpx.codes.CONFLICT:
            raise AirflowError(f"DAG `{dag}`: Airflow refuses the run: {answer.json().get('detail', answer.text)}")
        return run_id

    def get(self, path: str) -> Any:
        """What a GET below `/api/v2` answers.

        Raises:
            AirflowError: if it answers with an error.
        """
        answer = self._send("GET", f"/api/v2/{path}")
        if answer.is_error:
            raise AirflowError(f"Airflow at {self.address}: {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def state(self, dag: str, run_id: str) -> str:
        """State of a run: `queued`, `running`, `success` or `failed`."""
        state: str = self.get(f"dags/{dag}/dagRuns/{run_id}")["state"]
        return state

    def tasks(self, dag: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        found: list[dict[str, Any]] = self.get(f"dags/{dag}/dagRuns/{run_id}/taskInstances?limit=200")["task_instances"]
        return found

    def log(self, dag: str, run_id: str, task: Mapping[str, Any]) -> list[str]:
        """The lines of a task's log: those of the task, not Airflow's own."""
        path = f"dags/{dag}/dagRuns/{run_id}/taskInstances/{task['task_id']}/logs/{max(task['try_number'], 1)}"
        entries = self.get(f"{path}?map_index={task['map_index']}&full_content=true")["content"]
        return [entry["event"] for entry in entries if entry.get("logger") == "tidemark"]

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            return self._sent(method, path, body)
        except httpx.TransportError as error:
            raise AirflowError(
                f"Airflow at {self.address} does not answer {method} {path}: {str(error) or type(error).__name__}. "
                "`make status` says whether it runs and where its log is; `make up` starts it if it has ended."
            ) from error

    @retry(
        retry=retry_if_exception_type(httpx.TransportError),
        stop=stop_after_attempt(5),
        wait=wait_fixed(1),
        reraise=True,
    )
    def _sent(self, method: str, path: str, body: Any) -> httpx.Response:
        """What it answers. Whatever is sent may be sent twice: no run is started twice under one id."""
        if self._token is None:
            self._token = self._log_in()
        answer = self._client.request(method, path, json=body, headers={"Authorization": f"Bearer {self._token}"})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = None
            raise httpx.RemoteProtocolError("the token has expired")
        if answer.is_server_error:
            # SQLite is locked for longer than Airflow waits while a small machine starts everything at once.
            raise httpx.RemoteProtocolError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return answer

    def _log_in(self) -> str:
        answer = self._client.post("/auth/token", json={"username": USER, "password": password(self._home)})
        if answer.is_error:
            raise AirflowError(f"Airflow at {self.address} refuses the login of {self._home}: {answer.text[:200]}")
        token: str = answer.json()["access_token"]
        return token
