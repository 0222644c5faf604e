"""Commands of `tidemark` that a text suggests: each can be pasted as it is by whoever reads it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_BY_NAME = frozenset({"stop", "resume", "mute", "acknowledge"})
"""These take the name of what is deployed, whatever file it came from."""


@dataclass(frozen=True)
class _Typed:
    """What the person at this process has typed, and has to type again.

    Attributes:
        lake: what `--lake` was; None: the environment says it.
        arguments: pipeline -> how the command line names it, where it is not registered: `path.py:name`.
    """

    lake: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


_typed = _Typed()
"""Of the process: the command line sets it once, before it does anything."""


def typed_lake(lake: str | None) -> None:
    """Notes what `--lake` was; whatever else was noted is of an earlier command."""
    global _typed
    _typed = _Typed(lake)


def typed_arguments(arguments: Mapping[str, str]) -> None:
    """Notes how pipelines were named, beside those that were before."""
    global _typed
    _typed = replace(_typed, arguments={**_typed.arguments, **arguments})


def command(verb: str, *words: str) -> str:
    """A command to run next, with the file of a pipeline and the lake as they were typed before.

    Args:
        verb: such as `reset`.
        words: what comes after it: names of pipelines, options and their values.
    """
    known = {} if verb in _BY_NAME else _typed.arguments
    lake = () if _typed.lake is None else ("--lake", _typed.lake)
    return shlex.join(["tidemark", verb, *(known.get(word, word) for word in words), *lake])
