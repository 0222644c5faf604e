"""Where events come from."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from spark_jobs.spec.base import FROZEN, Spec
from spark_jobs.spec.expressions import Scalar, check_column_names, columns

_TABLE = re.compile(r"(bronze|silver|gold)\.[a-z][a-z0-9_]*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"[^\s,:/]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}")
BATCH_FILES, BATCH_BYTES = 1000, 128 * 1024**2
"""How much a batch of files takes where its definition does not say so: enough to keep all cores at work, and no more
than fits beside the state in the memory of a driver."""

GROWING_BATCH_BYTES = 8 * 1024**2
"""How much a batch takes of a table that is being filled: about a million events. With more, a large load would be read
only when it ends."""

SHADOW = "__shadow"
"""At the end of the name of a shadow, and of its table: see `spec.shadows`."""

_SIDE_TABLE = re.compile(r"__((late|quarantine|groups)$|rebuilt)")


def check_table_name(name: str) -> str:
    """A table of the lake: `bronze.<name>`, `silver.<name>` or `gold.<name>`.

    Raises:
        ValueError: if it is none, or the name of a side table that Tidemark keeps itself, or a shadow's.
    """
    if name.endswith(SHADOW):
        raise ValueError(f"{name!r} is a side table of a shadow, which goes when that is dropped: choose another name")
    return check_result_name(name)


def check_result_name(name: str) -> str:
    """A table that a pipeline writes, as `check_table_name`; a shadow writes its own.

    Raises:
        ValueError: if it is none, or the name of a side table that Tidemark keeps itself.
    """
    if not _TABLE.fullmatch(name):
        raise ValueError(f"expected a table such as 'gold.top_products' (bronze, silver or gold), got {name!r}")
    if _SIDE_TABLE.search(name):
        raise ValueError(f"{name!r} is a side table that Tidemark keeps beside its result: choose another name")
    return name


TableName = Annotated[str, AfterValidator(check_table_name)]
PositiveInt = Annotated[int, Field(ge=1)]


Format = Literal["json", "csv", "parquet"]
"""How the events of a source are written."""


class _Input(Spec):
    """What an ingest reads: the questions that each kind of source answers, so that nobody asks which kind it is.

    Each has a `format` and a `delimiter`, too, is `described` in words, and counts in a `unit`.
    """

    _place: ClassVar[frozenset[str]]
    """The fields that say where it is."""

    kind: str

    def __init__(self, /, **fields: object) -> None:
        super().__init__(**fields)

    @property
    def is_csv(self) -> bool:
        """Whether an event is a line of CSV."""
        return False

    @property
    def is_parquet(self) -> bool:
        """Whether an event is a row of a Parquet file."""
        return False

    @property
    def has_header(self) -> bool:
        """Whether the first line of each of its files names the columns."""
        return False

    @property
    def path_in_lake(self) -> str | None:
        """The folder that it reads, relative to the lake, or a pattern of such; None: it knows nothing of the lake."""
        return None

    @property
    def folder(self) -> str | None:
        """The folder of which it reads each file once, as it was given; None: it reads no files."""
        return None

    @property
    def read_tables(self) -> tuple[str, ...]:
        """Names of the tables of the lake that it reads as streams."""
        return ()

    @property
    def stops_at_revisions(self) -> bool:
        """Whether the ingest stops where rows that it may have read are changed or taken away."""
        return False

    def misfit(self, columns: Mapping[str, str]) -> str | None:
        """Why an ingest with these columns does not fit it; None: it does.

        Args:
            columns: name -> Spark SQL type.
        """
        return None

    def options_for(self, kind: str) -> dict[str, object]:
        """How it is read, for another place of the same kind; nothing where the other is of another kind.

        Args:
            kind: of the other source.
        """
        return self.model_dump(exclude={"kind", *self._place}) if self.kind == kind else {}


class Files(_Input):
    """A folder that grows: every new file below it is read once.

    Attributes:
        path: folder, absolute, `s3a://…`, or relative to the lake.
        format: `json` (one object a line), `csv` (columns in the order of the definition) or `parquet`.
        header: CSV only: the first line names the columns; a file whose header differs goes to the quarantine.
        delimiter: CSV only.
        max_files_per_trigger: at most so many files a batch.
        max_bytes_per_trigger: instead, about so many bytes a batch (soft; at least one file). Where neither is given:
            `BATCH_BYTES`, or `BATCH_FILES` of small files.
    """

    _place: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["files"] = "files"
    path: str
    format: Format = "json"
    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    max_files_per_trigger: PositiveInt | None = None
    max_bytes_per_trigger: PositiveInt | None = None

    def __init__(self, path: str, **options: object) -> None:
        super().__init__(path=path, **options)

    @property
    def is_csv(self) -> bool:
        """Whether an event is a line of CSV."""
        return self.format == "csv"

    @property
    def is_parquet(self) -> bool:
        """Whether an event is a row of a Parquet file."""
        return self.format == "parquet"

    @property
    def has_header(self) -> bool:
        """Whether the first line of each of its files names the columns."""
        return self.is_csv and self.header

    @property
    def path_in_lake(self) -> str | None:
        """The folder, relative to the lake, or a pattern of such; None: it is given by its whole address."""
        return None if "://" in self.path or self.path.startswith("/") else self.path

    @property
    def folder(self) -> str | None:
        """Its path."""
        return self.path

    @property
    def described(self) -> str:
        """What it is and where, in words."""
        return f"{self.format} files in {self.path}"

    @property
    def unit(self) -> str:
        """What is counted of it that has not been read, in words."""
        return "files"

    @field_validator("path")
    @classmethod
    def _is_a_folder(cls, path: str) -> str:
        scheme, separator, rest = path.partition("://")
        known = scheme in ("s3", "s3a", "file") if separator else True
        if not known or not (rest if separator else path).strip(" /") or "@" in rest.split("/")[0]:
            shown = f"{scheme}://…" if "@" in rest else path
            raise ValueError(
                f"expected a folder: relative to the lake, absolute, or s3a://bucket/prefix without credentials, got "
                f"{shown!r}"
            )
        return path

    @field_validator("delimiter")
    @classmethod
    def _separates(cls, delimiter: str) -> str:
        if delimiter in '"\\\r\n':
            raise ValueError(f"expected a character such as ',' or ';', got {delimiter!r}, which CSV uses otherwise")
        return delimiter

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.format != "csv" and (not self.header or self.delimiter != ","):
            raise ValueError(f"header and delimiter are for CSV, got format {self.format!r}: leave them out")
        if self.max_files_per_trigger is not None and self.max_bytes_per_trigger is not None:
            raise ValueError(
                f"max_bytes_per_trigger: Spark limits a batch of files by their number or by bytes, got "
                f"{self.max_files_per_trigger} files and {self.max_bytes_per_trigger} bytes: leave one out"
            )
        return self


class Kafka(_Input):
    """Topics of a Kafka cluster; each message value is one JSON object.

    Attributes:
        topic: one topic, or several separated by commas.
        bootstrap_servers: `host:port`, several separated by commas; None: `TIDEMARK_KAFKA` of the environment.
        starting_offsets: where a new checkpoint starts.
        max_offsets_per_trigger: at most so many messages a batch.
    """

    _place: ClassVar[frozenset[str]] = frozenset({"topic", "bootstrap_servers"})

    kind: Literal["kafka"] = "kafka"
    topic: str
    bootstrap_servers: str | None = None
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_offsets_per_trigger: PositiveInt | None = 1_000_000

    def __init__(self, topic: str, **options: object) -> None:
        super().__init__(topic=topic, **options)

    @property
    def format(self) -> Format:
        """How its events are written."""
        return "json"

    @property
    def delimiter(self) -> str:
        """Of CSV, which no message is."""
        return ","

    @property
    def described(self) -> str:
        """What it is and where, in words."""
        return f"topic {self.topic}"

    @property
    def unit(self) -> str:
        """What is counted of it that has not been read, in words."""
        return "messages"

    @field_validator("topic")
    @classmethod
    def _names_topics(cls, topic: str) -> str:
        if not all(_TOPIC.fullmatch(name.strip()) for name in topic.split(",")):
            raise ValueError(f"expected the name of a topic, or several separated by commas, got {topic!r}")
        return topic

    @field_validator("bootstrap_servers")
    @classmethod
    def _names_servers(cls, servers: str | None) -> str | None:
        if servers is not None and not all(_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
            raise ValueError(f"expected host:port, or several separated by commas, got {servers!r}")
        return servers


CHANGE_KIND, CHANGE_WEIGHT, CHANGE_VERSION = "change_kind", "change_weight", "change_version"

CHANGE_COLUMNS: Mapping[str, str] = {CHANGE_KIND: "STRING", CHANGE_WEIGHT: "INT", CHANGE_VERSION: "BIGINT"}
"""What `Results` gives beside the columns of the result: what has become of the row, by how much it counts, and the
version of the table."""


class Results(_Input):
    """A result table: each row that comes, changes or goes is an event.

    Attributes:
        table: `silver.<name>` or `gold.<name>`, which a pipeline writes.
        revised: of rows that are there and change or go, as by a repair, a backfill or an `update` sink: `read`: each
            is an event as it is now, a row that goes as it was last; `retract`: before a changed row comes the row as
            it was, with weight -1; `refuse`: the ingest stops.
        max_files_per_trigger: about so many data files a batch; all files of one version are in one batch.
        max_bytes_per_trigger: about so many bytes a batch; None: `BATCH_BYTES`. Whichever limit is reached first ends
            a batch.
    """

    _place: ClassVar[frozenset[str]] = frozenset({"table"})

    kind: Literal["results"] = "results"
    table: TableName
    revised: Literal["read", "retract", "refuse"] = "read"
    max_files_per_trigger: PositiveInt | None = BATCH_FILES
    max_bytes_per_trigger: PositiveInt | None = None

    def __init__(self, table: str, **options: object) -> None:
        super().__init__(table=table, **options)

    @property
    def format(self) -> Format:
        """How its events are written: a row has its types, as one of a Parquet file has."""
        return "parquet"

    @property
    def delimiter(self) -> str:
        """Of CSV, which no result is."""
        return ","

    @property
    def is_parquet(self) -> bool:
        """Whether an event is a row that has its types already: it is."""
        return True

    @property
    def described(self) -> str:
        """What it is and where, in words."""
        return f"results in {self.table}"

    @property
    def unit(self) -> str:
        """What is counted of it that has not been read, in words."""
        return "rows"

    @property
    def read_tables(self) -> tuple[str, ...]:
        """Its table."""
        return (self.table,)

    @property
    def stops_at_revisions(self) -> bool:
        """Whether the definition says so."""
        return self.revised == "refuse"

    def misfit(self, columns: Mapping[str, str]) -> str | None:
        """As `_Input.misfit`: the columns that it gives itself have their types, and revisions can be told.

        Args:
            columns: name -> Spark SQL type.
        """
        for name, sql_type in CHANGE_COLUMNS.items():
            if name in columns and columns[name].strip().upper() != sql_type:
                return f"columns: {name} is what has become of a row, of type {sql_type}, got {columns[name]!r}"
        if self.revised != "refuse" and not {CHANGE_KIND, CHANGE_WEIGHT} & columns.keys():
            return (
                f"columns: rows of {self.table} that change come again, expected {CHANGE_KIND!r} (STRING) or "
                f"{CHANGE_WEIGHT!r} (INT) to tell them from new ones, got {sorted(columns)}. Or have the ingest stop "
                f"at them: Results({self.table!r}, revised='refuse')"
            )
        return None

    @field_validator("table")
    @classmethod
    def _is_a_result(cls, table: str) -> str:
        if table.startswith("bronze."):
            raise ValueError(
                f"expected a silver or gold table, got {table!r}: a pipeline reads bronze by itself, Table"
            )
        return table


class Table(Spec):
    """A bronze table of the lake, read in the order in which its rows arrived.

    Attributes:
        name: `bronze.<stream>`.
        select: result column -> Spark SQL expression; None keeps all columns. Inside a `Union` every table selects
            the same columns.
        max_files_per_trigger: at most so many files of the table a batch.
        max_bytes_per_trigger: about so many bytes a batch (soft; at least one file); None: `BATCH_BYTES`, or
            `GROWING_BATCH_BYTES` in a run that ends, beside the ingest that fills the table. Whichever limit is
            reached first ends a batch.
    """

    kind: Literal["table"] = "table"
    name: TableName
    select: Annotated[Mapping[str, Scalar], Field(min_length=1), FROZEN] | None = None
    max_files_per_trigger: PositiveInt | None = BATCH_FILES
    max_bytes_per_trigger: PositiveInt | None = None

    def __init__(self, name: str, **options: object) -> None:
        super().__init__(name=name, **options)

    def reads(self) -> frozenset[str]:
        """The columns of the table that `select` reads."""
        return frozenset(chain.from_iterable(map(columns, (self.select or {}).values())))

    @field_validator("name")
    @classmethod
    def _bronze(cls, name: str) -> str:
        if not name.startswith("bronze."):
            raise ValueError(
                f"expected a bronze table, got {name!r}: bronze keeps every event with its place, which the late "
                "split needs"
            )
        return name

    @field_validator("select")
    @classmethod
    def _names_are_free(cls, select: Mapping[str, str] | None) -> Mapping[str, str] | None:
        check_column_names(select or ())
        return select


class Union(Spec):
    """Several bronze tables as one stream: each says with `select` how its rows give the common columns."""

    kind: Literal["union"] = "union"
    tables: tuple[Table, ...]

    def __init__(self, *tables: Table, **other: object) -> None:
        super().__init__(tables=other.pop("tables", tables), **other)

    @model_validator(mode="after")
    def _same_columns(self) -> Self:
        if len(self.tables) < 2:
            raise ValueError(f"tables: expected two or more, got {len(self.tables)}")
        shapes = {table.name: sorted(table.select or ()) for table in self.tables}
        if len(shapes) != len(self.tables):
            raise ValueError(f"tables: expected each table once, got {[table.name for table in self.tables]}")
        first, *others = shapes.values()
        if not first or any(other != first for other in others):
            raise ValueError(
                f"tables: expected the same columns from each table, got {shapes}: give each one "
                "select={column: expression}"
            )
        return self
