"""In which order definitions run: what fills a table before what reads its rows as they are."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_jobs.spec.pipeline import Definition, Ingest, Pipeline


class Link(NamedTuple):
    """A part of a chain: ingests, then the pipelines that read what they write.

    Attributes:
        ingests: whose source is outside of the lake, or a result of the links before.
        pipelines: in an order in which a table is there before another pipeline looks columns up in it.
    """

    ingests: tuple[Ingest, ...]
    pipelines: tuple[Pipeline, ...]


def links(definitions: Iterable[Definition]) -> tuple[Link, ...]:
    """The links of the chains that definitions make, the first one first; most have one.

    Args:
        definitions: that run together; a table that none of them writes is there already.
    """
    given = tuple(definitions)
    writers = {each.sink.table: each for each in given}
    depths: dict[str, int] = {}
    for each in given:
        _depth(each, writers, depths)
    found = []
    for depth in sorted(set(depths.values())):
        mine = [each for each in given if depths[each.name] == depth]
        pipelines = [each for each in mine if isinstance(each, Pipeline)]
        looked_up = {name for each in pipelines for name in each.lookups}
        pipelines.sort(key=lambda each: each.sink.table not in looked_up)
        found.append(Link(tuple(each for each in mine if isinstance(each, Ingest)), tuple(pipelines)))
    return tuple(found)


def in_order(definitions: Iterable[Definition]) -> tuple[Definition, ...]:
    """The definitions, each after those that fill the tables which it reads."""
    return tuple(each for link in links(definitions) for kind in link for each in kind)


def _depth(definition: Definition, writers: Mapping[str, Definition], depths: dict[str, int]) -> int:
    """After how many other links a definition comes."""
    if definition.name not in depths:
        depths[definition.name] = 0  # also where a result is read by what it is made of
        read = [writers[name] for name in definition.read_tables if name in writers]
        before = [_depth(each, writers, depths) for each in read]
        step = 1 if isinstance(definition, Ingest) else 0
        depths[definition.name] = max(before, default=-step) + step
    return depths[definition.name]
