"""The definitions that a user names, and where an ingest of theirs reads instead."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spark_jobs.cli.terminal import complain, say, warn
from spark_jobs.lake.commands import typed_arguments
from spark_jobs.pipelines import problems, registry, resolve_named
from spark_jobs.spec import Definition, DefinitionError, Files, Ingest, Kafka, Results
from spark_jobs.spec.errors import TidemarkError

if TYPE_CHECKING:
    from spark_jobs.lake import Lake
    from spark_jobs.lake.checkpoints.ran import Ran


def resolved(names: Iterable[str], *, on: "Lake | None" = None) -> tuple[Definition, ...]:
    """The definitions that a user named; tells of the files that cannot be loaded, which concern others.

    Args:
        names: as `resolve`.
        on: a lake on which a name may be of a pipeline that has run there, from whatever file.
    """
    found = resolve_named(names, _as_it_began_on(on)) if on is not None else resolve_named(names)
    typed_arguments({each.name: argument for argument, each in found.items()})
    warn_of_problems()
    return tuple(found.values())


def named_or_ran(names: Sequence[str] | None, lake: "Lake") -> "Ran":
    """The pipelines that a user named; nobody named one: all that have run on a lake."""
    from spark_jobs.lake.checkpoints.ran import Ran, that_have_run

    if names:
        return Ran(resolved(names, on=lake))
    ran = that_have_run(lake, registered())
    if not ran.definitions and not ran.unreadable:
        say(f"No pipeline has run on {lake.uri} yet.")
    return ran


def end_with(unreadable: Iterable[tuple[str, TidemarkError]]) -> None:
    """Ends a command that has gone through all pipelines but some, of which it tells.

    Raises:
        Exit: if there are such.
    """
    code = 0
    for _, error in unreadable:
        complain(str(error))
        code = code or error.exit_code
    if code:
        raise typer.Exit(code)


def _as_it_began_on(lake: "Lake") -> Callable[[str], Definition | None]:
    from spark_jobs.lake.checkpoints.ran import as_it_began

    return lambda name: as_it_began(lake, name)


def registered() -> tuple[Definition, ...]:
    """Every registered definition; tells of the files that cannot be loaded."""
    warn_of_problems()
    return tuple(registry().values())


def one(name: str, *, on: "Lake | None" = None) -> Definition:
    """The one definition that a user named.

    Args:
        name: as `resolve`.
        on: as `resolved`.

    Raises:
        DefinitionError: if it is a file with several.
    """
    definitions = resolved([name], on=on)
    if len(definitions) > 1:
        raise DefinitionError(f"file {name}: expected one pipeline, say which: {name}:{definitions[0].name}, …")
    return definitions[0]


def name_of(argument: str) -> str:
    """The name of a pipeline that has run, as the user named it: so, or by its file, as in commands that are suggested.

    Args:
        argument: of the command line.

    Raises:
        DefinitionError: if it is a file with several.
    """
    return one(argument).name if ".py" in argument else argument


def warn_of_problems() -> None:
    """Tells what is left out of the registered pipelines, and why."""
    for problem in problems():
        warn(f"{problem.message}. What it defines is left out; the other pipelines are not affected.")


def pointed_at(definitions: Sequence[Definition], source: str) -> list[Definition]:
    """The definitions, of which the one ingest reads elsewhere.

    Args:
        definitions: with one ingest.
        source: a folder, `s3a://…`, or `kafka://host:port/topic`.

    Raises:
        DefinitionError: if there is no such place, or another number of ingests.
    """
    ingests = [d for d in definitions if isinstance(d, Ingest) and not d.read_tables]
    if len(ingests) != 1:
        raise DefinitionError(
            f"--from points one ingest elsewhere; this run has {len(ingests)}: {[d.name for d in ingests]}"
        )
    elsewhere = ingests[0].model_copy(update={"source": _source(source, ingests[0].source)})
    return [elsewhere if d is ingests[0] else d for d in definitions]


def _source(text: str, before: Files | Kafka | Results) -> Files | Kafka:
    """The place that a text names, read as the one before where it is of its kind."""
    scheme, _, rest = text.partition("://")
    if scheme == "kafka":
        servers, _, topic = rest.partition("/")
        if not servers or not topic:
            raise DefinitionError(f"--from: expected kafka://host:port/topic, got {text!r}")
        return Kafka(topic, bootstrap_servers=servers, **before.options_for("kafka"))
    path = text if "://" in text else str(Path(text).absolute())
    return Files(path, **before.options_for("files"))
