"""Which columns of which tables may hold values of personal columns: by where their values come from.

A definition declares columns of its table. From there their values go on: through the columns that a source selects,
the steps, the key that a `Join` or an `Enrich` compares, the id of an event, to the tables beside a result and to the
pipelines that read or look up in it. What masks asks here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from spark_jobs.pipelines import registry
from spark_jobs.plan.columns import EVENT_ID, OTHER
from spark_jobs.plan.tables import beside, result_of
from spark_jobs.spec import Aggregate, Definition, Enrich, Ingest, Pipeline, Table
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.expressions import only_counts
from spark_jobs.spec.shadows import shadow_of
from spark_jobs.spec.steps.base import Origins, origins_of, origins_of_table

_Columns = Mapping[str, frozenset[str]]
"""Table -> those of its columns that may hold personal values."""

_TEXTS = frozenset({"raw", "detail"})
"""Of an ingest's quarantine: the whole row as a text, and words about it."""


@dataclass(frozen=True)
class PersonalColumns:
    """What is personal, by all definitions that are known.

    Attributes:
        definitions: those of a command, and the registered ones.
    """

    definitions: tuple[Definition, ...]

    def of(self, table: str) -> frozenset[str]:
        """The columns of a table whose values nobody is to see in passing.

        A name that any definition declares is one of them in each table, also where no definition tells what it has.

        Args:
            table: such as `gold.top_products__late`; a table that is built aside has the columns of its result, and a
                shadow's also those of the table that it may take the place of.
        """
        result, role = result_of(table)
        known = (self._by_table.get(beside(each, role), frozenset()) for each in (result, shadow_of(result) or result))
        return self.declared.union(*known)

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names that definitions declare."""
        return frozenset(name for each in self.definitions for name in each.personal)

    def touching(self, definition: Definition) -> frozenset[str]:
        """Those of what a pipeline reads, looks up and writes: its errors may quote their values."""
        tables = [definition.sink.table]
        if isinstance(definition, Pipeline):
            tables += definition.lookups
        tables += definition.read_tables
        known = frozenset().union(*(self._by_table.get(table, frozenset()) for table in tables))
        return known | frozenset(definition.personal)

    @cached_property
    def _by_table(self) -> _Columns:
        found: dict[str, frozenset[str]] = {}
        # What one pipeline passes on the next one reads: until nothing is added.
        while True:
            before = dict(found)
            for definition in self.definitions:
                for table, names in _of_tables(definition, before):
                    found[table] = found.get(table, frozenset()) | names
            if found == before:
                return found


def personal_with(*definitions: Definition) -> PersonalColumns:
    """What is personal by these definitions and all that are registered."""
    return PersonalColumns((*definitions, *registry().values()))


def mentioned(definition: Definition) -> frozenset[str]:
    """The columns that a definition names: an error may be told by them, whatever values it quotes."""
    if isinstance(definition, Ingest):
        return frozenset(definition.columns)
    selected = (name for table in definition.tables for name in (*(table.select or ()), *table.reads()))
    of_steps = (name for step in definition.steps for _, names in step.reads() for name in names)
    added = (name for step in definition.steps for name in step.adds())
    return frozenset((*selected, *of_steps, *added))


def _of_tables(definition: Definition, personal: _Columns) -> Iterator[tuple[str, frozenset[str]]]:
    """The tables that a definition writes, with their personal columns."""
    table, declared = definition.sink.table, frozenset(definition.personal)
    if isinstance(definition, Ingest):
        read = (personal.get(each, frozenset()) for each in definition.read_tables)
        if declared := declared.union(*read) & definition.columns.keys():
            own = {EVENT_ID} if definition.event_id in declared else set()
            # Fields that no column takes may be a column under another name.
            own |= {UNKNOWN_FIELDS} & set(definition.payload)
            yield table, declared | own
            yield beside(table, "quarantine"), declared | _TEXTS
        return
    of_events = _events(definition, personal)
    of_result = declared | frozenset(_of_result(definition, personal))
    yield table, of_result
    yield beside(table, "groups"), of_result
    window = {"missed_windows"} if definition.event_time in of_events else set()
    for role in ("late", "quarantine"):
        yield beside(table, role), declared | of_events | window


def _events(pipeline: Pipeline, personal: _Columns) -> frozenset[str]:
    """The columns of its events, as late ones and those that are set aside have them."""
    given = _merged(_given(table, personal) for table in pipeline.tables)
    return frozenset(_personal_ones(given, personal))


def _of_result(pipeline: Pipeline, personal: _Columns) -> Iterator[str]:
    known = {table: tuple(names) for table, names in personal.items()}
    given: Origins = _merged(_given(table, personal) for table in pipeline.source_tables)
    for step in pipeline.steps:
        given = step.origins(given, pipeline.event_time, known)
        others = [_given(table, personal) for table in step.tables()]
        if others:
            other = _merged(others)
            # The other side's id has a name of its own. A key that both sides have is the same value.
            own = {f"{OTHER}{name}": origins for name, origins in other.items() if name == EVENT_ID}
            own |= {name: origins for name, origins in other.items() if name != EVENT_ID}
            given = _merged((given, own))
        match step:
            case Enrich():
                keys = {name: frozenset({f"{step.table}.{name}"}) for name in step.on}
                given = _merged((given, keys))
            case Aggregate():
                counted = {name for name, sql in step.measures.items() if only_counts(sql)}
                given = {name: origins for name, origins in given.items() if name not in counted}
    yield from _personal_ones(given, personal)


def _given(table: Table, personal: _Columns) -> Origins:
    """Of the columns of a source; `_event_id` is kept, whatever it selects."""
    known = {table.name: tuple(personal.get(table.name, ()))}
    kept = {EVENT_ID: frozenset({f"{table.name}.{EVENT_ID}"})}
    return {**origins_of_table(table, known), **kept}


def _merged(all_of_them: Iterable[Origins]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for origins in all_of_them:
        for name, each in origins.items():
            found[name] = found.get(name, frozenset()) | each
    return found


def _personal_ones(given: Origins, personal: _Columns) -> Iterator[str]:
    pairs = {f"{table}.{name}".casefold() for table, names in personal.items() for name in names}
    return (name for name in given if any(each.casefold() in pairs for each in origins_of((name,), given)))
