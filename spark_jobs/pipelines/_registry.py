"""Finds the definitions in this folder, or in a file that a user names."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

from spark_jobs.spec import Definition, DefinitionError, Ingest, Pipeline


class UnknownPipelineError(LookupError):
    """No pipeline of this name, and no such file."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(name)

    def __str__(self) -> str:
        close = get_close_matches(self.name, self.known, n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        return (
            f"pipeline `{self.name}`: expected a registered name or a path to a file that defines one.{hint} "
            f"Registered: {', '.join(self.known)}."
        )


def _definitions(module: ModuleType) -> tuple[Definition, ...]:
    return tuple(value for value in vars(module).values() if isinstance(value, Ingest | Pipeline))


@cache
def registry() -> MappingProxyType[str, Definition]:
    """Every definition of this folder by name, in order of name.

    Raises:
        DefinitionError: if two have one name, or write to one table.
    """
    package = importlib.import_module(__package__)
    found: dict[str, Definition] = {}
    tables: dict[str, str] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            continue
        for definition in _definitions(importlib.import_module(f"{__package__}.{info.name}")):
            if definition.name in found:
                raise DefinitionError(f"pipeline `{definition.name}` is defined twice: rename one")
            other = tables.setdefault(definition.sink.table, definition.name)
            if other != definition.name:
                raise DefinitionError(
                    f"pipelines `{other}` and `{definition.name}` both write {definition.sink.table}: rename one sink"
                )
            found[definition.name] = definition
    return MappingProxyType(dict(sorted(found.items())))


def load_file(path: Path) -> tuple[Definition, ...]:
    """The definitions of a pipeline file outside of this folder.

    Raises:
        DefinitionError: if the file defines none.
    """
    spec = importlib.util.spec_from_file_location(f"tidemark_pipeline_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"file {path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    definitions = _definitions(module)
    if not definitions:
        raise DefinitionError(f"file {path}: expected an Ingest or a Pipeline at its top level, found none")
    return definitions


def resolve(names: Iterable[str]) -> tuple[Definition, ...]:
    """The definitions that a user named, each by its registered name or by the path of its file.

    Raises:
        UnknownPipelineError: for a name that is neither.
    """
    resolved: dict[str, Definition] = {}
    for name in names:
        path = Path(name)
        if name in registry():
            resolved[name] = registry()[name]
        elif path.suffix == ".py" and path.is_file():
            resolved |= {definition.name: definition for definition in load_file(path)}
        else:
            raise UnknownPipelineError(name, registry())
    return tuple(resolved.values())
