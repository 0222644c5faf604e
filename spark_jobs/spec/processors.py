"""Processors: what a `Process` step does with the events of a key, as Python of one's own.

A processor is a pure core: it sees an event, the state of its key and the key's timers as plain values, changes the
state and the timers, and gives rows. It imports no Spark, reads no clock and keeps nothing of its own between two
calls. So the same code runs in a stream, in batch over a range, and in a test without a JVM (`tidemark.testing`).
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from spark_jobs.spec.errors import DefinitionError

Row = Mapping[str, Any]
"""Column -> value; of `TIMESTAMP` a `datetime` with a zone, of `DECIMAL` a `Decimal`, of `ARRAY` a list, of `MAP` and
`STRUCT` a dictionary."""

State = MutableMapping[str, Any]
"""Field -> what is kept of it for a key; None where nothing is."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def instant_of(us: int) -> datetime:
    """An instant of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


def us_of(instant: datetime) -> int:
    """Microseconds since 1970 of an instant."""
    return (instant - _EPOCH) // _US


class Timers:
    """The timers of a key: name -> when each fires, in event time, or by the clock where the step says so.

    Args:
        at_us: those that are set; microseconds since 1970.
    """

    def __init__(self, at_us: dict[str, int] | None = None) -> None:
        self.at_us = {} if at_us is None else at_us

    def set(self, name: str, at: datetime) -> None:
        """Has `on_timer` called at an instant; an earlier setting of the same name is replaced.

        Args:
            name: of the timer.
            at: with a zone; an instant that has passed fires at once.

        Raises:
            ValueError: if `at` has no zone.
        """
        if at.tzinfo is None:
            raise ValueError(f"timer {name!r}: expected an instant with a zone, got {at!r}")
        self.at_us[name] = us_of(at)

    def cancel(self, name: str) -> None:
        """Forgets a timer; one that is not set is none."""
        self.at_us.pop(name, None)

    def __getitem__(self, name: str) -> datetime | None:
        return None if (us := self.at_us.get(name)) is None else instant_of(us)

    def __iter__(self) -> Iterator[str]:
        return iter(self.at_us)

    def items(self) -> Iterable[tuple[str, datetime]]:
        """Names and instants of those that are set."""
        return {name: instant_of(us) for name, us in self.at_us.items()}.items()


class Processor:
    """What becomes of the events of one key.

    Attributes:
        output: columns of the rows that it gives, with their SQL types.
        state: fields that are kept for a key, with their SQL types; each is None until it is set. A list is an `ARRAY`,
            a map a `MAP`. A key of which all fields are None, and no timer is set, is forgotten.
        version: of the code and the fields of `state`; a higher one goes on with what a lower one has kept, through
            `migrate`. Without a higher one, a change of the code asks for a new epoch.
    """

    output: ClassVar[Mapping[str, str]] = {}
    state: ClassVar[Mapping[str, str]] = {}
    version: ClassVar[int] = 1

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterable[Row] | None:
        """Takes an event.

        Args:
            key: its key columns.
            event: all of its columns.
            state: of its key; what is changed is kept.
            timers: of its key.

        Returns:
            the rows that it gives; None: none.
        """
        raise NotImplementedError

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterable[Row] | None:
        """Is told that a timer has fired, which is set no more.

        Args:
            key: whose timer it is.
            name: of the timer.
            at: when it was set to fire.
            state: of the key; what is changed is kept.
            timers: those that are still set.

        Returns:
            the rows that it gives; None: none.
        """
        return None

    def migrate(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """The state that an earlier version has kept, with the fields of this one; by their names, unless overridden.

        Args:
            state: as it was kept, in JSON's own types.
            version: that has kept it.
        """
        return {name: state.get(name) for name in type(self).state}


def code_of(processor: type[Processor]) -> str:
    """The source of a processor's class, with what it uses of its file: imports, functions, classes, constants.

    It is a part of the definition: so workers, batches and later sessions run what the stream has run, and a definition
    says that it has changed.

    Raises:
        DefinitionError: if there is no file to read it from.
    """
    name = processor.__name__
    path = next((each.__code__.co_filename for each in vars(processor).values() if inspect.isfunction(each)), "")
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except OSError:
        raise DefinitionError(
            f"processor {name}: expected its class in a file, with an `on_event` of its own; found no source in "
            f"{path!r}"
        ) from None
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        for given in _defines(statement):
            defined[given] = statement
    if not isinstance(defined.get(name), ast.ClassDef):
        raise DefinitionError(f"processor {name}: expected its class at the top level of {path}")
    wanted, found = [name], set[str]()
    while wanted:
        each = wanted.pop()
        if each in found or each not in defined:
            continue
        found.add(each)
        wanted += {node.id for node in ast.walk(defined[each]) if isinstance(node, ast.Name)}
    kept = [statement for statement in tree.body if found.intersection(_defines(statement))]
    return "\n\n".join(ast.unparse(statement) for statement in kept) + "\n"


def _defines(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level of a file gives a meaning to."""
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(each.asname or each.name).partition(".")[0] for each in names}
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def made_from(code: str, name: str) -> Processor:
    """A processor of its source.

    Args:
        code: as `code_of` gives it.
        name: of the class.

    Raises:
        DefinitionError: if it cannot be made.
    """
    space: dict[str, Any] = {"__name__": f"processor_{name}"}
    try:
        exec(compile(code, f"<processor {name}>", "exec"), space)
        made = space[name]()
    except Exception as error:
        raise DefinitionError(f"processor {name}: it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, Processor):
        raise DefinitionError(f"processor {name}: expected a subclass of Processor")
    return made
