"""Everything that docker-compose.yml refers to exists: files, variables, ports, commands, images, services."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from infra.setup_env import filled
from infra.setup_jars import SUPPORTED_JAVA
from spark_jobs.cli import app
from spark_jobs.lake.settings import KafkaSettings, S3Settings, Settings
from spark_jobs.simulator.streams import FORMATS
from tests.support.compose import Service, compose_file, read_yaml, services, variables
from tests.support.process import REPOSITORY

SERVICES = services()
OURS = {name: service for name, service in SERVICES.items() if service.raw["image"].startswith("tidemark:")}
TEXT = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
EXAMPLE = (REPOSITORY / ".env.example").read_text(encoding="utf-8")
NAMES_IN_EXAMPLE = re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, flags=re.MULTILINE)
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")

every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
every_service_of_ours = pytest.mark.parametrize("service", OURS.values(), ids=OURS)


def dockerfile(service: Service) -> Path:
    build = service.raw["build"]
    path = f"{build}/Dockerfile" if isinstance(build, str) else f"{build['context']}/{build['dockerfile']}"
    return REPOSITORY / path


def test_every_password_comes_from_the_environment_file_without_a_default() -> None:
    used = variables(TEXT)
    assert {told for name, told in used if told != f"set {name} in .env"} == set()
    assert {name for name, _ in used} == {name for name, _ in NAMES_IN_EXAMPLE}
    # No variable in any other form: a default would be a password that everybody knows.
    assert TEXT.count("${") == len(used)


def test_no_password_stands_in_the_file_or_in_the_example() -> None:
    assert [name for name, value in NAMES_IN_EXAMPLE if value] == []
    for service in SERVICES.values():
        for name, value in service.raw.get("environment", {}).items():
            if re.search(r"PASSWORD$|SECRET|_KEY$|CONN$", name):
                assert variables(str(value)), f"{service.name}: {name}"


def test_the_environment_file_is_kept_out_of_git_and_of_images() -> None:
    assert ".env" in (REPOSITORY / ".gitignore").read_text().splitlines()
    assert (REPOSITORY / ".dockerignore").read_text().splitlines()[1] == "*"


def test_the_environment_file_is_filled_once_and_keeps_what_it_has() -> None:
    first = filled(EXAMPLE, "")
    values = dict(line.split("=", 1) for line in first.splitlines() if "=" in line and not line.startswith("#"))
    assert set(values) == {name for name, _ in NAMES_IN_EXAMPLE}
    assert len(set(values.values())) == len(values)
    assert min(map(len, values.values())) >= 32
    assert filled(EXAMPLE, first) == first
    changed = first.replace(f"POSTGRES_PASSWORD={values['POSTGRES_PASSWORD']}", "POSTGRES_PASSWORD=mine") + "OWN=1\n"
    assert {"POSTGRES_PASSWORD=mine", "OWN=1"} <= set(filled(EXAMPLE, changed).splitlines())


@every_service
def test_what_is_mounted_is_there(service: Service) -> None:
    for volume in service.raw.get("volumes", []):
        source, target, *mode = volume.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (REPOSITORY / source).is_dir(), volume
            assert mode == ["ro"], volume
        else:
            assert source in compose_file()["volumes"], volume


def test_every_volume_is_used() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.raw.get("volumes", [])}
    assert set(compose_file()["volumes"]) == {name for name in used if not name.startswith(".")}


def test_ports_are_open_on_this_machine_only_and_each_once() -> None:
    published = [port for service in SERVICES.values() for port in service.raw.get("ports", [])]
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert len({port.split(":")[1] for port in published}) == len(published)


@every_service
def test_images_have_one_version(service: Service) -> None:
    tag = service.raw["image"].rpartition(":")[2]
    assert re.match(r"v?\d+(\.\d+){1,2}(-[a-z]+)?$|\d{14}$", tag), service.raw["image"]


def test_images_have_the_versions_that_the_repository_uses() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {service.raw["image"] for service in OURS.values()} == {f"tidemark:{project['version']}"}
    kafka = re.search(r"kafka_2\.13:([\d.]+)", (REPOSITORY / "infra/kafka-jars.txt").read_text())
    assert kafka is not None
    assert SERVICES["kafka"].raw["image"] == f"apache/kafka:{kafka[1]}"
    module = re.search(r"MINIO_MODULE := (\S+)", MAKEFILE)
    assert module is not None
    assert f"MINIO_MODULE={module[1]}\n" in dockerfile(SERVICES["minio"]).read_text()
    assert SERVICES["minio"].raw["image"].rpartition(":")[2] in module[1]


@pytest.mark.parametrize("name", ["minio", "streams"])
def test_what_an_image_copies_is_there_and_reaches_the_builder(name: str) -> None:
    build, file = SERVICES[name].raw["build"], dockerfile(SERVICES[name])
    context = REPOSITORY / (build if isinstance(build, str) else build["context"])
    lines = [line.split() for line in file.read_text().splitlines()]
    copied = [source for line in lines if line[:1] == ["COPY"] and "--from=build" not in line for source in line[1:-1]]
    sent = [line[1:] for line in (context / ".dockerignore").read_text().splitlines()[2:]] if copied else []
    for source in copied:
        assert (context / source).exists(), source
        assert source.partition("/")[0] in sent, source
    for line in lines:
        if line[:1] == ["FROM"]:
            assert re.search(r":\d+\.\d+", line[1]), f"{file}: {line}"


def test_the_image_has_a_python_and_a_java_that_are_supported() -> None:
    text = dockerfile(SERVICES["streams"]).read_text()
    java, python = re.search(r"openjdk-(\d+)-jre", text), re.search(r"FROM python:3\.(\d+)", text)
    assert java is not None
    assert int(java[1]) in SUPPORTED_JAVA
    assert python is not None
    assert int(python[1]) >= 11


@every_service
def test_every_dependency_is_a_service_that_can_fulfil_it(service: Service) -> None:
    for name, wanted in service.raw.get("depends_on", {}).items():
        other = SERVICES[name].raw
        match wanted["condition"]:
            case "service_healthy":
                assert "healthcheck" in other, name
            case "service_completed_successfully":
                assert other["restart"] == "no", name
            case unknown:
                pytest.fail(unknown)


@every_service
def test_what_runs_for_long_is_checked_restarted_and_limited(service: Service) -> None:
    if service.raw["restart"] == "no":
        return
    assert service.raw["restart"] == "unless-stopped"
    assert service.raw["deploy"]["resources"]["limits"]["memory"]
    if "profiles" not in service.raw:
        check = service.raw["healthcheck"]
        assert {"test", "interval", "timeout", "retries", "start_period"} <= set(check)
        assert check["test"][0] == "CMD"


@every_service_of_ours
def test_every_command_of_ours_is_one_that_the_repository_has(service: Service) -> None:
    for words in (service.command, service.raw.get("healthcheck", {}).get("test", ["CMD"])[1:]):
        if words:
            check_command(words)


def check_command(words: list[str]) -> None:
    match words:
        case ["tidemark", verb, *arguments]:
            command = typer.main.get_command(app)
            assert verb in command.commands, f"tidemark {verb}"  # type: ignore[attr-defined]
            found = command.commands[verb]  # type: ignore[attr-defined]
            assert found.make_context(verb, list(arguments)).args == []
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module), module
        case ["python", "-c", code]:
            compile(code, "healthcheck", "exec")
        case ["spark-class", name, *_]:
            assert name in ("org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker")
        case ["airflow", *_]:
            pass  # tests/services runs them all at once: Airflow takes seconds to import
        case _:
            pytest.fail(f"what is {words}?")


@every_service_of_ours
def test_every_address_is_a_service_and_a_port_of_its(service: Service) -> None:
    text = json.dumps([service.raw.get("environment"), service.command, service.raw.get("healthcheck")])
    known = {
        "minio": {"9000"},
        "kafka": {"9092"},
        "spark-master": {SERVICES["spark-master"].option("--port")},
        "airflow-api-server": {SERVICES["airflow-api-server"].option("--port")},
    }
    for host, port in re.findall(r"(?:://|TIDEMARK_KAFKA\": \")([a-z-]+):(\d+)", text):
        assert host == "localhost" or port in known[host], f"{host}:{port}"
        assert host == "localhost" or service.networks & SERVICES[host].networks, f"{service.name} cannot reach {host}"


def test_the_cluster_shares_its_network_only_with_the_services_it_needs() -> None:
    cluster = {"spark-master", "spark-worker", "streams"}
    # In one network each: Spark tells others one address of a machine.
    assert {name: SERVICES[name].networks for name in cluster} == {name: {"cluster"} for name in cluster}
    beside = {name for name, service in SERVICES.items() if "cluster" in service.networks} - cluster
    assert beside == {"minio", "kafka", "prometheus"}
    declared = {name for service in SERVICES.values() for name in service.networks}
    assert declared - {"default"} == set(compose_file()["networks"])


def test_the_cluster_takes_nobody_who_does_not_know_its_secret() -> None:
    for name, options in (("spark-master", "SPARK_MASTER_OPTS"), ("spark-worker", "SPARK_WORKER_OPTS")):
        environment = SERVICES[name].raw["environment"]
        assert "-Dspark.authenticate=true" in environment[options].split()
        assert [each for each, _ in variables(environment["_SPARK_AUTH_SECRET"])] == ["SPARK_SECRET"]
    streams = SERVICES["streams"].raw["environment"]
    assert streams["TIDEMARK_SPARK_SECRET"] == SERVICES["spark-master"].raw["environment"]["_SPARK_AUTH_SECRET"]
    for service in SERVICES.values():
        assert not variables(" ".join(service.command)), "a command line is read by everybody on the host"


@every_service_of_ours
def test_every_setting_of_ours_is_one_that_is_read(service: Service) -> None:
    known = {
        f"{model.model_config['env_prefix']}{field}".upper()
        for model in (Settings, KafkaSettings, S3Settings)
        for field in model.model_fields
    }
    given = {name for name in service.raw.get("environment", {}) if name.startswith("TIDEMARK_")}
    assert given <= known


def test_every_setting_of_airflow_is_one_that_it_has() -> None:
    package = importlib.util.find_spec("airflow")
    assert package is not None
    assert package.origin is not None
    sections = read_yaml(Path(package.origin).parent / "config_templates/config.yml")
    given = [name for name in SERVICES["airflow-scheduler"].raw["environment"] if name.startswith("AIRFLOW__")]
    for name in given:
        _, section, option = name.lower().split("__")
        assert option in sections[section]["options"], name


def test_the_parts_of_airflow_share_one_configuration() -> None:
    parts = [service.raw for name, service in SERVICES.items() if name.startswith("airflow-")]
    shared = SERVICES["airflow-triggerer"].raw["environment"]
    assert all(shared.items() <= part["environment"].items() for part in parts)
    assert all(part["volumes"] == ["airflow:/var/lib/airflow"] for part in parts)


def test_supervisor_and_command_name_the_lake_of_the_policies() -> None:
    lakes = {service.raw["environment"].get("TIDEMARK_LAKE") for service in OURS.values()} - {None}
    assert lakes == {SERVICES["streams"].option("--lake")}
    place = next(iter(lakes)).removeprefix("s3a://")
    for policy in (REPOSITORY / "infra/minio/policies").glob("*.json"):
        assert f"arn:aws:s3:::{place}/" in policy.read_text()


def test_the_simulator_has_a_topic_for_each_stream_that_it_sends() -> None:
    topics = SERVICES["kafka-setup"].raw["environment"]["KAFKA_TOPICS"].split(",")
    sent = SERVICES["simulator"].option("--streams").split(",")
    assert set(sent) <= set(topics) <= set(FORMATS)


def test_prometheus_asks_the_ports_that_the_streams_serve() -> None:
    config = read_yaml(REPOSITORY / "infra/prometheus/prometheus.yml")
    targets: dict[str, list[str]] = {
        scrape["job_name"]: [target for static in scrape["static_configs"] for target in static["targets"]]
        for scrape in config["scrape_configs"]
    }
    port = int(SERVICES["streams"].option("--metrics-port"))
    assert targets["supervisor"] == [f"streams:{port}"]
    assert targets["drivers"] == [f"streams:{port + number}" for number in range(1, 11)]
    assert SERVICES["prometheus"].networks & SERVICES["streams"].networks
    assert all(scrape["honor_labels"] for scrape in config["scrape_configs"])
    assert [(REPOSITORY / "infra/prometheus" / file).is_file() for file in config["rule_files"]] == [True]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    mounts: dict[str, Any] = {
        target: REPOSITORY / source
        for source, target, *_ in (volume.split(":") for volume in SERVICES["grafana"].raw["volumes"])
    }
    provisioning = mounts["/etc/grafana/provisioning"]
    source = read_yaml(provisioning / "datasources/prometheus.yml")["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["grafana"].networks & SERVICES["prometheus"].networks
    provider = read_yaml(provisioning / "dashboards/tidemark.yml")["providers"][0]
    dashboards = mounts[provider["options"]["path"]]
    home = SERVICES["grafana"].raw["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (dashboards / Path(home).name).is_file()
    for file in dashboards.glob("*.json"):
        assert set(re.findall(r'"uid": "(\w+)"', file.read_text())) == {source["uid"]}


def test_the_images_own_requirements_are_pinned_and_not_named_twice() -> None:
    own = (REPOSITORY / "infra/images/tidemark/requirements.txt").read_text()
    shared = (REPOSITORY / "requirements.txt").read_text()
    packages = [line for line in own.splitlines() if line and not line.startswith("#")]
    assert all("==" in line and f"\n{line.split('==')[0]}==" not in shared for line in packages)
    assert f"\napache-airflow=={version('apache-airflow')}" in shared
