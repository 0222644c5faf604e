"""What drivers and executors are started with."""

import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.spark import settings as module
from spark_jobs.spark.settings import MissingJarsError, secret_environment, spark_settings
from tests.support.process import REPOSITORY

CLUSTER = "spark://somewhere:7077"
EXECUTORS = "spark.executor.extraJavaOptions"


@pytest.fixture(autouse=True)
def jars(tmp_path, monkeypatch):
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "delta.jar").touch()
    monkeypatch.setattr(module, "JARS_FOLDER", folder)
    return folder


def given(tmp_path, **settings):
    return spark_settings(Lake(str(tmp_path)), Settings(**settings))


def test_java_options_reach_the_driver_and_on_a_cluster_its_executors(tmp_path):
    alone = given(tmp_path, master="local[2]", java_options="-XX:+UseZGC")
    assert alone["spark.driver.extraJavaOptions"].endswith(" -XX:+UseZGC")
    assert EXECUTORS not in alone
    assert given(tmp_path, master=CLUSTER, java_options="-XX:+UseZGC")[EXECUTORS] == "-XX:+UseZGC"


def test_who_lives_briefly_has_its_code_compiled_once_unless_told_else(tmp_path):
    settings = Settings(master="local[2]", java_options="-XX:TieredStopAtLevel=4")
    brief, others = (
        spark_settings(Lake(str(tmp_path)), settings, brief=each)["spark.driver.extraJavaOptions"].split()
        for each in (True, False)
    )
    # The last of two that contradict each other holds.
    assert [each for each in brief if "Tiered" in each] == ["-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4"]
    assert [each for each in others if "Tiered" in each] == ["-XX:TieredStopAtLevel=4"]


def test_the_log_settings_that_java_is_given_exist_and_are_packaged(tmp_path):
    options = given(tmp_path, master="local[2]")["spark.driver.extraJavaOptions"]
    address = next(each for each in options.split() if "log4j2.configurationFile" in each).partition("=")[2]
    path = Path(unquote(urlsplit(address).path))
    assert "rootLogger.level" in path.read_text()
    packaged = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    package = ".".join(path.parent.relative_to(REPOSITORY).parts)
    assert path.name in packaged[package]


def test_without_further_options_executors_get_none(tmp_path):
    assert EXECUTORS not in given(tmp_path, master=CLUSTER, java_options="")


def test_jars_are_on_the_class_path_of_a_driver_and_sent_to_executors(tmp_path, jars):
    jar = str(jars / "delta.jar")
    assert given(tmp_path, master="local[2]")["spark.driver.extraClassPath"] == jar
    assert given(tmp_path, master=CLUSTER)["spark.jars"] == jar


def test_missing_jars_are_told_with_what_to_run(tmp_path, jars):
    (jars / "delta.jar").unlink()
    with pytest.raises(MissingJarsError, match="Run `make setup`"):
        given(tmp_path)


def test_the_secret_of_a_cluster_is_never_on_the_command_line(tmp_path):
    settings = Settings(master=CLUSTER, spark_secret="known to few")
    options = spark_settings(Lake(str(tmp_path)), settings)
    assert options["spark.authenticate"] == "true"
    assert "known to few" not in " ".join(options.values())
    assert secret_environment(settings) == {"_SPARK_AUTH_SECRET": "known to few"}
    assert "known to few" not in repr(settings)


@pytest.mark.parametrize("secret", [None, ""])
def test_without_a_secret_a_cluster_is_asked_for_none(tmp_path, secret):
    settings = Settings(master=CLUSTER, spark_secret=secret)
    assert "spark.authenticate" not in spark_settings(Lake(str(tmp_path)), settings)
    assert secret_environment(settings) == {}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_a_driver_of_this_machine_alone_is_reached_from_it_alone(tmp_path, master):
    options = given(tmp_path, master=master)
    assert options["spark.driver.bindAddress"] == options["spark.driver.host"] == "127.0.0.1"
    assert secret_environment(Settings(master=master, spark_secret="of a cluster")) == {}


def test_a_driver_on_a_cluster_is_reached_by_its_executors(tmp_path):
    assert not {"spark.driver.bindAddress", "spark.driver.host"} & set(given(tmp_path, master=CLUSTER))
