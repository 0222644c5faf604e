"""docker-compose.yml as docker compose would read it, for tests that hold it against the repository."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.process import REPOSITORY

_VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+):\?(?P<told>[^}]*)\}")


@dataclass(frozen=True)
class Service:
    """One service, with its `<<` merged.

    Attributes:
        name: Its name, and its host name for the others.
        raw: What the file says of it.
    """

    name: str
    raw: dict[str, Any]

    @property
    def command(self) -> list[str]:
        """Program and arguments; empty where the image decides."""
        return _words(self.raw.get("entrypoint", [])) + _words(self.raw.get("command", []))

    @property
    def networks(self) -> set[str]:
        """The networks that it is in."""
        return set(self.raw.get("networks", ["default"]))

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """Its variables, with those of `.env` filled in."""
        found = self.raw.get("environment", {})
        return {name: _VARIABLE.sub(lambda match: env[match["name"]], str(value)) for name, value in found.items()}

    def option(self, name: str) -> str:
        """The value of an option of its command."""
        words = self.command
        return words[words.index(name) + 1]


@cache
def compose_file() -> dict[str, Any]:
    """The parsed file."""
    return read_yaml(REPOSITORY / "docker-compose.yml")


def read_yaml(path: Path) -> dict[str, Any]:
    """What a file of YAML says."""
    # PyYAML's own parser, written in Python, takes half a second for the settings of Airflow.
    parsed: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return parsed


def services() -> dict[str, Service]:
    """The services by their names."""
    return {name: Service(name, raw) for name, raw in compose_file()["services"].items()}


def variables(text: str) -> list[tuple[str, str]]:
    """The variables that a text takes from `.env`, each with what is said where it is not set."""
    return [(match["name"], match["told"]) for match in _VARIABLE.finditer(text)]


def _words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)
