"""The definitions that a user names, and where an ingest of theirs reads instead."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_jobs.cli.terminal import warn
from spark_jobs.pipelines import load_file, problems, registry, resolve
from spark_jobs.spec import Definition, DefinitionError, Files, Ingest, Kafka


def resolved(names: Iterable[str]) -> tuple[Definition, ...]:
    """The definitions that a user named; tells of the files that cannot be loaded, which concern others."""
    found = resolve(names)
    warn_of_problems()
    return found


def registered() -> tuple[Definition, ...]:
    """Every registered definition; tells of the files that cannot be loaded."""
    warn_of_problems()
    return tuple(registry().values())


def arguments_of(names: Iterable[str]) -> dict[str, str]:
    """Pipeline -> how the command line names it alone, for those of files that are not registered: `path.py:name`."""
    files = {f"{name.partition('.py:')[0].removesuffix('.py')}.py" for name in names if name not in registry()}
    return {each.name: f"{file}:{each.name}" for file in sorted(files) for each in load_file(Path(file))}


def one(name: str) -> Definition:
    """The one definition that a user named.

    Raises:
        DefinitionError: if it is a file with several.
    """
    definitions = resolved([name])
    if len(definitions) > 1:
        raise DefinitionError(f"file {name}: expected one pipeline, say which: {name}:{definitions[0].name}, …")
    return definitions[0]


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
    ingests = [d for d in definitions if isinstance(d, Ingest)]
    if len(ingests) != 1:
        raise DefinitionError(
            f"--from points one ingest elsewhere; this run has {len(ingests)}: {[d.name for d in ingests]}"
        )
    elsewhere = ingests[0].model_copy(update={"source": _source(source, ingests[0].source)})
    return [elsewhere if d is ingests[0] else d for d in definitions]


def _source(text: str, before: Files | Kafka) -> Files | Kafka:
    """The place that a text names, read as the one before where it is of its kind."""
    scheme, _, rest = text.partition("://")
    if scheme == "kafka":
        servers, _, topic = rest.partition("/")
        if not servers or not topic:
            raise DefinitionError(f"--from: expected kafka://host:port/topic, got {text!r}")
        return Kafka(topic, bootstrap_servers=servers, **before.options_for("kafka"))
    path = text if "://" in text else str(Path(text).absolute())
    return Files(path, **before.options_for("files"))
