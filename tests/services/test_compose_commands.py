"""The commands and settings of docker-compose.yml, run without containers: a service that would not come up there does
not come up here.

MinIO and its users, Kafka and its users, and Spark's master with a worker; the values come from the file itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from infra.airflow.setup_home import write_password
from infra.setup_env import filled
from spark_jobs.console.laptop.ports import free_port
from tests.support.compose import Service, services
from tests.support.kafka import kafka_jars, start_sasl_kafka
from tests.support.minio import REGION, Minio, minio_binary
from tests.support.process import REPOSITORY, leave_out, running

SERVICES = services()
ENV = dict(
    line.split("=", 1)
    for line in filled((REPOSITORY / ".env.example").read_text(), "").splitlines()
    if "=" in line and not line.startswith("#")
)


def environment(service: str, **places: str) -> dict[str, str]:
    """A service's variables on this machine: those of the file, with its own addresses."""
    given = SERVICES[service].environment(ENV)
    assert set(places) <= set(given), f"{service} has no such variable any more"
    home = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    # As in the image: Spark's scripts look for the Python that has PySpark.
    home["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**home, **given, **places}


def moved(service: Service, **values: str) -> list[str]:
    """A service's command, with the values of some options, or some words, replaced."""
    words = list(service.command)
    for old, new in values.items():
        place = words.index(f"--{old.replace('_', '-')}") + 1
        words[place] = new
    return words


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def says_how_it_is(url: str) -> bool:
    """Whether it answers with JSON: pages of Spark's answer in HTML a moment before."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(json.load(answer))
    except (OSError, json.JSONDecodeError):
        return False


def checked_path(service: str) -> str:
    """What the service's health check asks for, without the host."""
    text = " ".join(SERVICES[service].raw["healthcheck"]["test"])
    return text.partition("http://127.0.0.1:")[2].partition("/")[2].split("'")[0]


def test_minio_starts_and_its_setup_gives_each_user_a_way_in(tmp_path: Path) -> None:
    binary = minio_binary()
    if binary is None:
        leave_out("no MinIO server in .cache/bin or on PATH: run `make setup-tests`")
    address = f"127.0.0.1:{free_port()}"
    words = moved(SERVICES["minio"], address=address, console_address=f"127.0.0.1:{free_port()}")
    command = [str(binary), *(str(tmp_path / "data") if word == "/data" else word for word in words)]
    ready = f"http://{address}/{checked_path('minio')}"
    with running(
        "minio",
        command,
        log=tmp_path / "minio.log",
        is_ready=lambda: answers(ready),
        environment=environment("minio"),
    ):
        run_module("minio-setup", starts=2, AWS_ENDPOINT_URL=f"http://{address}")
        for service in ("streams", "airflow-scheduler"):
            given = SERVICES[service].environment(ENV)
            assert given["AWS_REGION"] == REGION
            user = Minio(f"http://{address}", given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
            assert user.keys("tidemark", "lake/") == []


# The same script and the same set-up: tests/services/test_kafka_sasl.py; that commands, settings and topics of the file
# are those that there are: tests/unit/test_compose.py
@pytest.mark.long
def test_kafka_starts_and_its_setup_gives_each_user_a_way_in(tmp_path: Path) -> None:
    if kafka_jars() is None:
        leave_out("no jars of Kafka: `make setup-tests` fetches them")
    assert SERVICES["kafka"].command == ["bash", "/etc/tidemark/kafka/start.sh"]
    with start_sasl_kafka(tmp_path, SERVICES["kafka"].environment(ENV)) as broker:
        # That a second start finds all in place: tests/services/test_kafka_sasl.py.
        run_module("kafka-setup", starts=1, TIDEMARK_KAFKA=broker.bootstrap_servers)
        for service in ("streams", "simulator"):
            given = SERVICES[service].environment(ENV)
            options = {
                "bootstrap.servers": broker.bootstrap_servers,
                "security.protocol": given["TIDEMARK_KAFKA_SECURITY_PROTOCOL"],
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": given["TIDEMARK_KAFKA_USERNAME"],
                "sasl.password": given["TIDEMARK_KAFKA_PASSWORD"],
            }
            client = AdminClient(options)
            topics = SERVICES["kafka-setup"].environment(ENV)["KAFKA_TOPICS"].split(",")
            assert set(topics) <= set(client.list_topics(timeout=20).topics)


def run_module(service: str, *, starts: int, **places: str) -> None:
    """Runs a set-up as so many starts do."""
    program, *arguments = SERVICES[service].command
    assert program == "python"
    for _ in range(starts):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=environment(service, **places),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [value for value in ENV.values() if value in done.stdout + done.stderr] == []


def test_spark_master_and_worker_start_and_find_each_other(tmp_path: Path) -> None:
    with spark("spark-master", tmp_path, host="127.0.0.1", port=str(free_port())) as (master, words):
        address = f"spark://127.0.0.1:{words[words.index('--port') + 1]}"
        places = {"work_dir": str(tmp_path / "work"), "spark://spark-master:7077": address}
        with spark("spark-worker", tmp_path, **places) as (worker, _):
            workers = await_workers(master, worker)
    wanted = SERVICES["spark-worker"]
    assert [(each["cores"], each["memory"]) for each in workers] == [(int(wanted.option("--cores")), 2 * 1024)]
    assert wanted.option("--memory") == "2g"


@contextmanager
def spark(name: str, folder: Path, **places: str) -> Iterator[tuple[str, list[str]]]:
    """Runs a daemon of Spark's; gives what its health check asks for, and its command."""
    address = places.pop("spark://spark-master:7077", None)
    port = free_port()
    words = moved(SERVICES[name], webui_port=str(port), **places)
    if address is not None:
        assert words[-1] == "spark://spark-master:7077"
        words[-1] = address
    state = f"http://127.0.0.1:{port}/{checked_path(name)}"
    # This machine's name may lead nowhere; a container's leads to itself.
    variables = {**environment(name), "SPARK_LOCAL_IP": "127.0.0.1"}
    if "SPARK_MASTER_OPTS" in variables:
        variables["SPARK_MASTER_OPTS"] = variables["SPARK_MASTER_OPTS"].replace("/var/lib/tidemark", str(folder))
    log = folder / f"{name}.log"
    words[0] = str(Path(sys.executable).with_name(words[0]))
    with running(name, words, log=log, is_ready=lambda: says_how_it_is(state), environment=variables):
        yield state, words


def await_workers(master: str, worker: str) -> list[dict[str, object]]:
    """The workers that the master knows, once the worker says that it is registered."""
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(master, timeout=5) as answer:
            workers: list[dict[str, object]] = json.load(answer)["workers"]
        if workers:
            with urllib.request.urlopen(worker, timeout=5) as answer:
                assert json.load(answer)["id"] == workers[0]["id"]
            return workers
        assert time.monotonic() < deadline, "the worker did not find its master"
        time.sleep(0.1)


def test_airflows_password_is_written_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "auth/passwords.json"
    given = environment(
        "airflow-setup", AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(file), AIRFLOW_HOME=str(tmp_path)
    )
    for _ in range(2):
        write_password(given)
        assert json.loads(file.read_text()) == {"admin": ENV["AIRFLOW_ADMIN_PASSWORD"]}
        assert file.stat().st_mode & 0o077 == 0


def test_every_command_of_airflows_is_one_that_airflow_has(tmp_path: Path) -> None:
    told = [service.command[1:] for service in SERVICES.values() if service.command[:1] == ["airflow"]]
    parse = "import json, sys; from airflow.cli.cli_parser import get_parser as p"
    code = f"{parse}; [p().parse_args(words) for words in json.loads(sys.argv[1])]"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(told)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(told) == 4
    assert {script.name for script in entry_points(group="console_scripts")} >= {"airflow", "tidemark"}
