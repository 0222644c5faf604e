"""Finds the definitions in this folder, or in a file that a user names."""

import importlib
import importlib.util
import pkgutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import MappingProxyType, ModuleType

from spark_jobs.spec import Definition, DefinitionError, Ingest, Pipeline
from spark_jobs.spec.chains import in_order
from spark_jobs.spec.errors import TidemarkError
from spark_jobs.spec.shadows import shadow_of


@dataclass(frozen=True)
class Problem:
    """What keeps definitions of this folder from being registered; the others are.

    Attributes:
        message: the file, the line and the error, or what two definitions both claim.
        names: of the pipelines that are left out for it; none where a file cannot be loaded.
    """

    message: str
    names: frozenset[str] = frozenset()


class UnknownPipelineError(TidemarkError, LookupError):
    """No pipeline of this name, and no such file."""

    def __init__(self, name: str, known: Iterable[str], problems: Iterable[Problem] = ()) -> None:
        self.name = name
        self.known = tuple(known)
        self.problems = tuple(problems)
        super().__init__(name)

    def __str__(self) -> str:
        close = get_close_matches(self.name, self.known, n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        return (
            f"pipeline `{self.name}`: expected a registered name or a path to a file that defines one.{hint} "
            f"Registered: {', '.join(self.known)}.{_left_out(self.problems)}"
        )


def _left_out(problems: Iterable[Problem]) -> str:
    messages = "; ".join(problem.message for problem in problems)
    return f" Left out until it is fixed: {messages}." if messages else ""


def _definitions(module: ModuleType) -> tuple[Definition, ...]:
    """What the module defines or imports, each value once.

    Raises:
        DefinitionError: if one is called as only shadows are.
    """
    found = {id(value): value for value in vars(module).values() if isinstance(value, Ingest | Pipeline)}
    for each in found.values():
        if shadow_of(each.name) is not None:
            raise DefinitionError(
                f"pipeline `{each.name}`: only a shadow is called so, and no file defines one: rename it"
            )
    return tuple(found.values())


def _by_name(definitions: Iterable[Definition]) -> dict[str, Definition]:
    """The definitions by name; the same value may come more than once, as where one file imports from another.

    Raises:
        DefinitionError: if two have one name, or write to one table.
    """
    found: dict[str, Definition] = {}
    tables: dict[str, str] = {}
    for definition in definitions:
        if found.setdefault(definition.name, definition) is not definition:
            raise DefinitionError(f"pipeline `{definition.name}` is defined twice: rename one")
        other = tables.setdefault(definition.sink.table, definition.name)
        if other != definition.name:
            raise DefinitionError(
                f"pipelines `{other}` and `{definition.name}` both write {definition.sink.table}: rename one sink"
            )
    return found


@dataclass(frozen=True)
class _LoadedDefinitions:
    """What this folder defines.

    Attributes:
        definitions: by name, in order of name.
        problems: what else should be among them.
        clashing: definitions that claim what another one claims, too.
    """

    definitions: MappingProxyType[str, Definition]
    problems: tuple[Problem, ...]
    clashing: tuple[Definition, ...]


def registry() -> MappingProxyType[str, Definition]:
    """Every definition of this folder by name, in order of name, without those that `problems` tells of."""
    return _load(_files()).definitions


def problems() -> tuple[Problem, ...]:
    """The files of this folder that cannot be loaded, and the definitions that claim one name or one table."""
    return _load(_files()).problems


def registered_readers(skipped: Callable[[str], None]) -> tuple[Pipeline, ...]:
    """The pipelines of this folder, without those of files that cannot be loaded: what runs does not end for them.

    Args:
        skipped: takes what is wrong with each such file.
    """
    loaded = _load(_files())
    for problem in loaded.problems:
        if not problem.names:
            skipped(problem.message)
    return tuple(each for each in (*loaded.definitions.values(), *loaded.clashing) if isinstance(each, Pipeline))


def _files() -> tuple[Path, ...]:
    package = importlib.import_module(__package__)
    return tuple(
        sorted(
            Path(folder, f"{info.name}.py")
            for folder in package.__path__
            for info in pkgutil.iter_modules([folder])
            if not info.name.startswith("_")
        )
    )


@cache
def _load(files: tuple[Path, ...]) -> _LoadedDefinitions:
    """Each file by itself: what is wrong with one concerns the pipelines of that one."""
    places: dict[int, str] = {}
    by_id: dict[int, Definition] = {}
    problems = []
    for path in files:
        try:
            for definition in _registered(path):
                by_id.setdefault(id(definition), definition)
                places.setdefault(id(definition), path.name)
        except DefinitionError as error:
            problems.append(Problem(str(error)))
    clashing: set[int] = set()
    for those in _sharing(by_id.values(), lambda each: each.name):
        clashing |= {id(each) for each in those}
        told = " and ".join(places[id(each)] for each in those)
        problems.append(Problem(f"pipeline `{those[0].name}` is defined in {told}: rename one", _names(those)))
    for those in _sharing(by_id.values(), lambda each: each.sink.table):
        clashing |= {id(each) for each in those}
        told = " and ".join(f"`{each.name}` ({places[id(each)]})" for each in those)
        problems.append(Problem(f"pipelines {told} write {those[0].sink.table}: rename one sink", _names(those)))
    sound = {each.name: each for place, each in by_id.items() if place not in clashing}
    return _LoadedDefinitions(
        definitions=MappingProxyType(dict(sorted(sound.items()))),
        problems=tuple(problems),
        clashing=tuple(each for place, each in by_id.items() if place in clashing),
    )


def _sharing(definitions: Iterable[Definition], what: Callable[[Definition], str]) -> list[list[Definition]]:
    """Those that have something in common, of which each should have its own."""
    found: dict[str, list[Definition]] = {}
    for each in definitions:
        found.setdefault(what(each), []).append(each)
    return [those for those in found.values() if len(those) > 1]


def _names(definitions: Iterable[Definition]) -> frozenset[str]:
    return frozenset(each.name for each in definitions)


def _registered(path: Path) -> tuple[Definition, ...]:
    try:
        return _definitions(importlib.import_module(f"{__package__}.{path.stem}"))
    except (Exception, SystemExit) as error:
        raise DefinitionError(f"{_place(path, error)}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, DefinitionError) else f"{type(error).__name__}: {error}"


class _UncachedLoader(SourceFileLoader):
    """Reads a file anew each time: Python knows a compiled one by its size and the second in which it was written."""

    def path_stats(self, path: str) -> dict[str, object]:
        """Says that the file's age is unknown, so that nothing compiled is kept or used."""
        raise OSError(path)


def load_file(path: Path) -> tuple[Definition, ...]:
    """The definitions of a pipeline file outside of this folder; registered ones that it imports are not its own.

    Raises:
        DefinitionError: if the file defines none, two of one name, or two that write to one table.
    """
    name = f"tidemark_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise DefinitionError(f"file {path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise DefinitionError(f"{_place(path, error)}: {_said(error)}") from error
    registered = {id(definition) for definition in registry().values()}
    definitions = [definition for definition in _definitions(module) if id(definition) not in registered]
    if not definitions:
        raise DefinitionError(f"file {path}: expected an Ingest or a Pipeline at its top level, found none")
    return tuple(_by_name(definitions).values())


def _place(path: Path, error: BaseException) -> str:
    """The file, and the line of it where the error came from."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"file {path}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"file {path}, line {frames[-1].lineno}" if frames else f"file {path}"


def resolve(names: Iterable[str]) -> tuple[Definition, ...]:
    """The definitions that a user named, as `resolve_named`."""
    return tuple(resolve_named(names).values())


def resolve_named(
    names: Iterable[str], elsewhere: Callable[[str], Definition | None] = lambda _: None
) -> dict[str, Definition]:
    """How the command line names each alone -> the definitions that a user named.

    Args:
        names: each a registered name, the path of a file (all that it defines), or `path:name` (one of them).
        elsewhere: what a name means that is neither; None: nothing.

    Raises:
        UnknownPipelineError: for a name that is neither.
        DefinitionError: if a name is claimed by two files, if two definitions have one
            name, or write to one table, or one to the table of a registered pipeline.
    """
    resolved: dict[str, Definition] = {}
    for name in dict.fromkeys(names):
        file, _, one = name.partition(".py:")
        path = Path(f"{file}.py" if one else name)
        if name in registry():
            resolved[name] = registry()[name]
        elif path.suffix == ".py" and path.is_file():
            defined = {definition.name: definition for definition in load_file(path)}
            if one and one not in defined:
                raise UnknownPipelineError(one, defined)
            resolved |= {f"{path}:{each}": defined[each] for each in ([one] if one else defined)}
        elif clash := next((problem for problem in problems() if name in problem.names), None):
            raise DefinitionError(f"{clash.message}. Nothing was done.")
        elif (other := elsewhere(name)) is not None:
            resolved[name] = other
        else:
            raise UnknownPipelineError(name, registry(), problems())
    _refuse_taken_tables(resolved.values())
    # The same value may be named twice, as where one file imports from another.
    kept = {id(each) for each in _by_name(resolved.values()).values()}
    once = {id(each): argument for argument, each in reversed(resolved.items()) if id(each) in kept}
    return {argument: each for argument, each in resolved.items() if once[id(each)] == argument}


def _refuse_taken_tables(definitions: Iterable[Definition]) -> None:
    """A copied file whose sink was not renamed would write into the table of the one that it was copied from."""
    owners = {each.sink.table: each.name for each in registry().values()}
    for definition in definitions:
        owner = owners.get(definition.sink.table, definition.name)
        if owner != definition.name:
            raise DefinitionError(
                f"pipeline `{definition.name}`: writes {definition.sink.table}, which is the table of `{owner}`. "
                "Nothing was started. Name another sink."
            )


def with_sources(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """The definitions, after the registered ones that fill the tables which they read and look columns up in.

    Raises:
        DefinitionError: if no registered definition, and none of these, writes such a table.
    """
    wanted = tuple(definitions)
    by_table = {each.sink.table: each for each in wanted}
    writers = {each.sink.table: each for each in registry().values()}
    needed = _needed_by(wanted)
    while missing := needed - set(by_table):
        unknown = missing - set(writers)
        if unknown:
            raise DefinitionError(
                f"--with-sources: no registered definition writes {', '.join(sorted(unknown))}.{_left_out(problems())}"
            )
        by_table |= {table: writers[table] for table in missing}
        needed |= _needed_by(by_table.values())
    sources = [each for each in by_table.values() if each not in wanted]
    chained = in_order(sorted(by_table.values(), key=lambda each: each.name))
    ordered = [each for each in chained if each in sources]
    return tuple({each.name: each for each in (*ordered, *wanted)}.values())


def _needed_by(definitions: Iterable[Definition]) -> set[str]:
    """Tables that they read, or look columns up in."""
    known = list(definitions)
    looked_up = {name for each in known if isinstance(each, Pipeline) for name in each.lookups}
    return looked_up.union(*(each.read_tables for each in known))
