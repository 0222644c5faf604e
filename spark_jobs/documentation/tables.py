"""What a page says of a table, from its definition, its schema and its checks."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.plan.lineage import known_columns, lineage
from spark_jobs.plan.meanings import column_comments
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.plan.tables import TableRef
from spark_jobs.spec import Definition, Ingest, Pipeline
from spark_jobs.spec.personal import is_personal

_ROLES = {
    "result": "What the pipeline computes.",
    "late": "Events that came too late for the result beside it.",
    "groups": "Every group of the ranking beside it, not only the first ones.",
    "quarantine": "Rows that were set aside, with the reason.",
}


@dataclass(frozen=True)
class ColumnDocument:
    """A column of a table.

    Attributes:
        name: of it.
        type: by its name in Delta; empty where the table does not exist yet.
        meaning: in words; empty: nobody has said.
        origins: the columns of other tables that it is computed from.
        personal: whether its values are masked in samples.
    """

    name: str
    type: str
    meaning: str
    origins: tuple[str, ...]
    personal: bool


@dataclass(frozen=True)
class TableDocument:
    """A table, as its page tells of it.

    Attributes:
        ref: the table.
        definition: of the pipeline that writes it.
        description: what its rows are.
        reads: tables, or the files or topic, that it is computed from.
        read_by: tables that are computed from it.
        columns: in the order of the table, or of the definition where there is none yet.
        rows_key: columns that identify a row.
        exists: whether the lake has it.
    """

    ref: TableRef
    definition: Definition
    description: str
    reads: tuple[str, ...]
    read_by: tuple[str, ...]
    columns: tuple[ColumnDocument, ...]
    rows_key: tuple[str, ...]
    exists: bool


def documents(lake: Lake, definition: Definition, registered: Mapping[str, Definition]) -> Iterator[TableDocument]:
    """The documents of the tables that a pipeline writes, its result first.

    Args:
        lake: where.
        definition: of the pipeline.
        registered: all definitions, by name: they tell what is read by what, and what a column that is passed on means.
    """
    everything = {**registered, definition.name: definition}
    known = PersonalColumns(tuple(everything.values()))
    for ref in reversed(plan_on(lake, definition).tables):
        types = _types(lake, ref)
        origins = _origins(definition, ref, everything)
        meanings = column_comments(definition, ref.role)
        names = list(types) or [*origins]
        personal = known.of(ref.name)
        yield TableDocument(
            ref=ref,
            definition=definition,
            description=definition.description if ref.role == "result" else _ROLES[ref.role],
            reads=_reads(definition),
            read_by=_read_by(ref.name, everything),
            columns=tuple(
                ColumnDocument(
                    name,
                    types.get(name, ""),
                    meanings.get(name) or _passed_on(name, origins.get(name, ()), everything),
                    origins.get(name, ()),
                    is_personal(name, personal),
                )
                for name in names
            ),
            rows_key=ref.keys,
            exists=bool(types),
        )


def _types(lake: Lake, ref: TableRef) -> dict[str, str]:
    try:
        fields = open_table(lake, ref.name).schema().fields
    except MissingTableError:
        return {}
    return {field.name: str(getattr(field.type, "type", field.type)) for field in fields}


def _origins(definition: Definition, ref: TableRef, known: Mapping[str, Definition]) -> dict[str, tuple[str, ...]]:
    """Of a side table, the columns that it keeps of its source have the same names there."""
    if isinstance(definition, Ingest):
        return dict.fromkeys(definition.columns, ())
    if ref.role in ("result", "groups"):
        return {name: tuple(sorted(origins)) for name, origins in lineage(definition, known_columns(known)).items()}
    return {}


def _passed_on(name: str, origins: Collection[str], known: Mapping[str, Definition]) -> str:
    """The meaning of a column that is one of another table, unchanged."""
    for origin in origins if len(origins) == 1 else ():
        table, _, column = origin.rpartition(".")
        writer = next((each for each in known.values() if each.sink.table == table), None)
        if writer is not None and column == name:
            return writer.column_descriptions.get(column, "")
    return ""


def _reads(definition: Definition) -> tuple[str, ...]:
    if isinstance(definition, Pipeline):
        return (*definition.read_tables, *definition.lookups)
    return definition.read_tables or (definition.source.described,)


def _read_by(table: str, known: Mapping[str, Definition]) -> tuple[str, ...]:
    return tuple(sorted(each.sink.table for each in known.values() if table in _reads(each)))
