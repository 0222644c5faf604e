"""A pipeline: one frozen value that says what runs. Nothing here imports Spark."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator

from spark_jobs.spec.alerts import Alerts
from spark_jobs.spec.base import FROZEN, Spec
from spark_jobs.spec.durations import Duration, PositiveDuration, format_duration
from spark_jobs.spec.errors import DefinitionError
from spark_jobs.spec.expressions import (
    PlainColumn,
    SqlType,
    check_column_names,
    columns,
    has_keys_that_json_lacks,
    is_nested,
    is_numeric,
    is_text,
    order_by_columns,
)
from spark_jobs.spec.rules import Between, NotNull, OneOf, RowRule, Satisfies
from spark_jobs.spec.sinks import Sink
from spark_jobs.spec.sources import Files, Kafka, Table, Union
from spark_jobs.spec.steps import Aggregate, Select, Step, TopN, Where
from spark_jobs.spec.watermark import Late, Watermark
from spark_jobs.spec.windows import Session


def is_name(text: str) -> bool:
    """Whether a pipeline or a job may be called so; such a name is safe as a part of a path."""
    return re.fullmatch(r"[a-z][a-z0-9_]{0,62}", text) is not None


def _check_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            f"expected a lower-case letter, then at most 62 lower-case letters, digits and underscores, got {name!r}"
        )
    return name


def _check_job(name: str) -> str:
    if name == "probe":
        raise ValueError("expected another name than 'probe', which the look at the store at each start has")
    return name


PipelineName = Annotated[str, AfterValidator(_check_name)]

METADATA_COLUMNS = ("_event_id", "_ingest_seq", "_ingest_time", "_source", "_heartbeat")
"""What ingest adds to the payload of each bronze row."""

LATE_COLUMNS = frozenset({"missed_windows", "partly_late", "late_by_ms", "watermark", "engine_watermark"})
"""What a late row has beside the event."""


class _Definition(Spec):
    name: PipelineName
    sink: Sink
    trigger_interval: Duration = timedelta(0)
    """Time between the starts of two batches; zero: the next as soon as one is done."""
    job: Annotated[PipelineName, AfterValidator(_check_job)] = "streams"
    """Deployed pipelines of one job share a driver."""
    alerts: Alerts = Alerts()
    """When a person should look."""

    def to_json(self) -> str:
        """The whole definition as JSON, columns in their order; what is kept beside a checkpoint."""
        return json.dumps(self.model_dump(mode="json"))

    def fingerprint(self) -> str:
        """A hash of all that decides what a checkpoint holds and what its tables mean.

        Rate limits, trigger intervals, alerts and the job are left out: they may change under a running checkpoint.
        """
        return hashlib.sha256(json.dumps(_what_counts(self.to_json()), sort_keys=True).encode()).hexdigest()[:16]


def changed_fields(before: str, after: str) -> tuple[str, ...]:
    """The fields in which two definitions, as JSON, differ, of those that `fingerprint` goes by."""
    old, new = _what_counts(before), _what_counts(after)
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def _what_counts(definition: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(definition)
    for changeable in ("trigger_interval", "job", "alerts"):
        value.pop(changeable, None)
    for source in _sources(value["source"]):
        for limit in [key for key in source if key.endswith("_per_trigger")]:
            source.pop(limit)
    if value["source"].get("format") == "csv":
        value["columns"] = list(value["columns"].items())  # their order is that of the file
    for step in value.get("steps", ()):
        if "measures" in step:
            step["measures"] = list(step["measures"].items())  # their order is that of the values in Spark's state
    return value


def _sources(source: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from source.get("tables", (source,))


class Ingest(_Definition):
    """Reads files or Kafka, checks each row and appends it to bronze, or to `<table>__quarantine` with the reason.

    Attributes:
        columns: payload column -> Spark SQL type; for CSV in the order of the file.
        event_time: the column that says when the event happened; a TIMESTAMP.
        event_id: the column that identifies an event; None: a hash of the row's place (topic, partition and offset,
            or file and line).
        max_future: how far ahead of its arrival an event time may be; what claims more goes to the quarantine, since
            it would make all honest events late.
        arrival_time: the column that says when the event arrived, where history is replayed; None: the ingest time.
        rules: what each row must satisfy.
        idle_after: when the input has been silent for so long, heartbeats move the watermark on; None: never.
    """

    kind: Literal["ingest"] = "ingest"
    source: Annotated[Files | Kafka, Field(discriminator="kind")]
    columns: Annotated[Mapping[str, SqlType], Field(min_length=1), FROZEN]
    event_time: str
    event_id: str | None = None
    max_future: PositiveDuration = timedelta(hours=1)
    arrival_time: str | None = None
    rules: tuple[RowRule, ...] = ()
    idle_after: PositiveDuration | None = None

    @property
    def all_rules(self) -> tuple[RowRule, ...]:
        """The rules, and those that every event must satisfy: it has an event time and, if declared, an id."""
        required = [self.event_time, *([self.event_id] if self.event_id else [])]
        named = {rule.column for rule in self.rules if isinstance(rule, NotNull)}
        return (*(NotNull(column) for column in required if column not in named), *self.rules)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for field in ("event_time", "event_id", "arrival_time"):
            column = getattr(self, field)
            if column is not None and column not in self.columns:
                raise ValueError(f"{field}: expected one of the columns {sorted(self.columns)}, got {column!r}")
        for field in ("event_time", "arrival_time"):
            column = getattr(self, field)
            if column is not None and self.columns[column].strip().upper() != "TIMESTAMP":
                raise ValueError(
                    f"{field}: expected a column of type TIMESTAMP, got {column!r} of type {self.columns[column]!r}"
                )
        if not self.sink.table.startswith("bronze.") or self.sink.mode != "append":
            raise ValueError(
                f"sink: an ingest appends to a bronze table, got {self.sink.table!r} in mode {self.sink.mode!r}"
            )
        if self.idle_after is not None and self.idle_after <= self.trigger_interval:
            raise ValueError(
                f"idle_after: expected more than the trigger_interval of {format_duration(self.trigger_interval)}, got "
                f"{format_duration(self.idle_after)}: between two batches nothing is read, which is no silence"
            )
        self._check_types()
        self._check_rules()
        return self

    @field_validator("columns")
    @classmethod
    def _names_are_free(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(columns)
        return columns

    def _check_types(self) -> None:
        if isinstance(self.source, Files) and self.source.format == "csv":
            nested = {name: sql_type for name, sql_type in self.columns.items() if is_nested(sql_type)}
            if nested:
                raise ValueError(
                    f"columns: CSV holds single values, got {nested}: use STRING, and from_json in a Select"
                )
        elif isinstance(self.source, Kafka) or self.source.format == "json":
            keyed = {name: sql_type for name, sql_type in self.columns.items() if has_keys_that_json_lacks(sql_type)}
            if keyed:
                raise ValueError(f"columns: the keys of a JSON object are texts, got {keyed}: use MAP<STRING, ...>")

    def _check_rules(self) -> None:
        names = [rule.name for rule in self.rules]
        for rule in self.rules:
            if names.count(rule.name) > 1:
                raise ValueError(f"rules: expected each name once, got {rule.name!r} twice: the ledger counts by name")
            read = columns(rule.sql) if isinstance(rule, Satisfies) else {rule.column}
            unknown = read - set(self.columns)
            if unknown:
                raise ValueError(
                    f"rules: {rule.name} reads {sorted(unknown)}; expected columns of {sorted(self.columns)}"
                )
            required = isinstance(rule, NotNull) and rule.column in (self.event_time, self.event_id)
            if required and rule.on_failure == "warn":
                raise ValueError(f"rules: {rule.name} cannot only warn: nothing downstream can place such an event")
            # Spark would compare as numbers, or as the column's type, and stop at the first text that is none.
            if isinstance(rule, Between) and not is_numeric(self.columns[rule.column]):
                raise ValueError(
                    f"rules: {rule.name} compares numbers, but {rule.column!r} is {self.columns[rule.column]}: use "
                    f"Satisfies(name, condition)"
                )
            if isinstance(rule, OneOf) and not is_text(self.columns[rule.column]):
                raise ValueError(
                    f"rules: {rule.name} compares texts, but {rule.column!r} is {self.columns[rule.column]}: use "
                    f"Satisfies(name, condition)"
                )


class Pipeline(_Definition):
    """Reads bronze, computes results and keeps what came too late for them.

    Attributes:
        source: a bronze table, or several as one stream.
        event_time: the column that windows and the watermark go by; None only for a running total.
        watermark: when a window is final; None only for a running total, which never is.
        steps: `Where`, `Select`, one `Aggregate`, then `Select` or `TopN`, in this order of execution.
    """

    kind: Literal["pipeline"] = "pipeline"
    source: Annotated[Table | Union, Field(discriminator="kind")]
    event_time: PlainColumn | None = None
    watermark: Watermark | None = None
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The bronze tables that are read."""
        return self.source.tables if isinstance(self.source, Union) else (self.source,)

    @property
    def aggregate(self) -> Aggregate:
        """The one step that groups."""
        return next(step for step in self.steps if isinstance(step, Aggregate))

    @property
    def row_steps(self) -> tuple[Where | Select, ...]:
        """What happens to each event before it is grouped."""
        before = self.steps[: self.steps.index(self.aggregate)]
        return tuple(step for step in before if isinstance(step, Where | Select))

    @property
    def result_steps(self) -> tuple[Select, ...]:
        """What is computed from each result row."""
        after = self.steps[self.steps.index(self.aggregate) + 1 :]
        return tuple(step for step in after if isinstance(step, Select))

    @property
    def top_n(self) -> TopN | None:
        """The ranking at the end, if any."""
        return next((step for step in self.steps if isinstance(step, TopN)), None)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """What identifies a row of the result."""
        window = ("window_start", "window_end") if self.aggregate.window else ()
        return (*window, *self.aggregate.by)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check_steps()
        self._check_time()
        self._check_columns()
        if self.sink.table.startswith("bronze."):
            raise ValueError(f"sink: bronze holds events as they arrived, got {self.sink.table!r}: use silver or gold")
        return self

    def _check_steps(self) -> None:
        kinds = [step.kind for step in self.steps]
        if kinds.count("aggregate") != 1:
            raise ValueError(f"steps: expected exactly one Aggregate, got {kinds.count('aggregate')} in {kinds}")
        after = kinds[kinds.index("aggregate") + 1 :]
        if "where" in after:
            raise ValueError(
                "steps: a Where after Aggregate would remove counted results, which the ledger could not tell from "
                "lost ones: filter events before Aggregate, or results when you query them"
            )
        if "top_n" in kinds and kinds.index("top_n") != len(kinds) - 1:
            raise ValueError(f"steps: expected TopN once, as the last step, got {kinds}")

    def _check_time(self) -> None:
        window, update = self.aggregate.window, self.sink.mode == "update"
        if window is None:
            if not update:
                raise ValueError(
                    f"sink: a running total never becomes final, got mode 'append': "
                    f'use Sink({self.sink.table!r}, mode="update")'
                )
            if self.watermark is not None:
                raise ValueError("watermark: a running total has no window that it could close: leave it out")
            if self.top_n is not None:
                raise ValueError("steps: TopN ranks inside a window: give the Aggregate one")
            return
        if self.event_time is None or self.watermark is None:
            raise ValueError("event_time and watermark: are required where the Aggregate has a window")
        if isinstance(window, Session):
            if update:
                raise ValueError('sink: Spark cannot update session windows: use mode="append"')
            if not self.aggregate.by:
                raise ValueError("steps: Spark needs a key for session windows: name it in Aggregate(by=...)")
            if self.top_n is not None:
                raise ValueError("steps: sessions of different keys share no window to rank in: leave TopN out")
        if self.watermark.late is Late.UPDATE and not update:
            raise ValueError(
                f'watermark: Late.UPDATE changes published results: use Sink({self.sink.table!r}, mode="update")'
            )

    def _check_columns(self) -> None:
        """Names that are known wrong without knowing bronze's columns."""
        self._check_event_columns()
        self._check_result_columns()

    def _check_event_columns(self) -> None:
        selects = [table.select for table in self.tables if table.select is not None]
        for table in self.tables:
            if table.select is not None and self.event_time is not None and self.event_time not in table.select:
                raise ValueError(
                    f"event_time: {table.name} does not select {self.event_time!r}; it selects {sorted(table.select)}"
                )
        # Columns of a table without `select` are bronze's own: Spark checks them when the stream starts.
        given = {*selects[0], *_KEPT_COLUMNS} if selects else None
        taken = {name.casefold() for name in (*(selects[0] if selects else ()), self.event_time or "")}
        for name in selects[0] if selects else ():
            self._check_late_name(name)
        for step in self.steps[: self.steps.index(self.aggregate)]:
            if isinstance(step, Where):
                _check_known("Where", columns(step.condition), given)
            if isinstance(step, Select):
                for name, sql in step.columns.items():
                    if name.casefold() in taken:
                        raise ValueError(f"steps: Select: expected a new column, got {name!r}, which exists: rename it")
                    self._check_late_name(name)
                    _check_known(f"Select {name!r}", columns(sql), given)
                taken |= {name.casefold() for name in step.columns}
                given = given and given | set(step.columns)
        _check_known("Aggregate by", self.aggregate.by, given)
        self._check_time_is_no_key()
        for name, sql in self.aggregate.measures.items():
            _check_known(f"Aggregate measure {name!r}", columns(sql), given)

    def _check_time_is_no_key(self) -> None:
        if self.aggregate.window is None:
            return
        copies = {
            name: sql for step in self.row_steps if isinstance(step, Select) for name, sql in step.columns.items()
        }
        for name in self.aggregate.by:
            if self.event_time in (name, copies.get(name, "").strip(" `()")):
                raise ValueError(
                    f"steps: Aggregate by {name!r} is the event time, by which the window groups already: leave it "
                    "out, or group by something computed from it, such as to_date(...) in a Select"
                )

    def _check_late_name(self, name: str) -> None:
        if self.watermark is not None and self.watermark.late is not Late.DROP and name.casefold() in LATE_COLUMNS:
            raise ValueError(f"{name!r} is a column that Tidemark adds to late rows: choose another name")

    def _check_result_columns(self) -> None:
        results = {*self.key_columns, *self.aggregate.measures}
        for select in self.result_steps:
            for name, sql in select.columns.items():
                unknown = columns(sql) - results
                if unknown or name.casefold() in {result.casefold() for result in results}:
                    raise ValueError(
                        f"steps: Select {name!r} after Aggregate: expected a new name computed from "
                        f"{sorted(results)}, got {sql!r}"
                    )
            results |= set(select.columns)
        if self.top_n is not None:
            unknown = order_by_columns(self.top_n.order_by) - results
            if unknown:
                raise ValueError(f"steps: TopN order_by reads {sorted(unknown)}; expected columns of {sorted(results)}")


_KEPT_COLUMNS = ("_event_id", "_ingest_seq", "_ingest_time")


def _check_known(what: str, read: Iterable[str], given: set[str] | None) -> None:
    if given is None:
        return
    unknown = sorted(set(read) - given)
    if unknown:
        raise ValueError(f"steps: {what} reads {unknown}; expected columns of {sorted(given)}")


Definition = Ingest | Pipeline

_ANY = TypeAdapter[Definition](Annotated[Definition, Field(discriminator="kind")])


def definition_from_json(text: str) -> Definition:
    """Reads what `to_json` wrote.

    Raises:
        DefinitionError: if another version of Tidemark wrote it, with fields or values that this one does not know.
    """
    try:
        return _ANY.validate_json(text)
    except ValidationError as error:
        raise DefinitionError(
            f"a definition kept in the lake cannot be read by this version of Tidemark: {error}"
        ) from error
