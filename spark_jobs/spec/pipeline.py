"""A pipeline: one frozen value that says what runs. Nothing here imports Spark."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator

from spark_jobs.spec.alerts import Alerts
from spark_jobs.spec.base import FROZEN, Spec
from spark_jobs.spec.contract import UNKNOWN_FIELDS, Contract
from spark_jobs.spec.durations import Duration, PositiveDuration, format_duration
from spark_jobs.spec.errors import DefinitionError
from spark_jobs.spec.expectations import Expectation, check_expectations
from spark_jobs.spec.expressions import (
    PlainColumn,
    SqlType,
    check_column_names,
    has_keys_that_json_lacks,
    is_nested,
)
from spark_jobs.spec.parsing import Parsing, collisions
from spark_jobs.spec.rules import NotNull, RowRule, check_rules
from spark_jobs.spec.savepoints import Savepoints
from spark_jobs.spec.sinks import Sink
from spark_jobs.spec.sources import SHADOW, Files, Kafka, Results, Table, Union
from spark_jobs.spec.steps import RESULT_COLUMNS, Columns, Enrich, Step, TopN
from spark_jobs.spec.watermark import Late, Watermark


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

LATE_COLUMNS = frozenset(
    {
        "missed_windows",
        "partly_late",
        "late_by_ms",
        "watermark",
        "engine_watermark",
        "settled_version",
        "settled_at",
    }
)
"""What a late row has beside the event."""

QUARANTINE_COLUMNS = frozenset(
    {"replayed_batch", "replayed_at", "changes_from", "changes_upto", "settled_version", "settled_at"}
)
"""What a row that a pipeline sets aside has beside the event, and beside `reason` and `detail`."""


_OTHERWISE = (
    "leave such a field out, keep it with contract=Contract(new='keep'), and give it another name where it is read: "
    "Table(select={'order_id': \"_unknown_fields['order id']\", ...})"
)


class _Definition(Spec):
    name: PipelineName
    sink: Sink
    trigger_interval: Duration = timedelta(0)
    """Time between the starts of two batches; zero: the next as soon as one is done."""
    job: Annotated[PipelineName, AfterValidator(_check_job)] = "streams"
    """Deployed pipelines of one job share a driver."""
    alerts: Alerts = Alerts()
    """When a person should look."""
    savepoints: Savepoints | None = None
    """How often a running pipeline is saved by itself; None: only when somebody asks, and before what changes it."""
    expectations: tuple[Expectation, ...] = ()
    """What the rows of the table must satisfy, and the table as a whole: `tidemark check` looks."""
    personal: tuple[str, ...] = ()
    """Columns whose values no sample and no report shows."""
    description: str = ""
    """What the rows of the table are, for those who query it."""
    owner: str = ""
    """Whom to ask: a team or a person."""
    column_descriptions: Annotated[Mapping[str, str], FROZEN] = {}
    """Column -> its meaning, with the unit; a comment of the Delta table, too."""

    @property
    def is_checked(self) -> bool:
        """Whether its table has a suite of expectations."""
        return bool(self.expectations)

    @model_validator(mode="after")
    def _is_a_shadow_or_none(self) -> Self:
        table = self.sink.table
        if self.name.endswith(SHADOW) != table.endswith(SHADOW):
            raise ValueError(
                f"name: names and tables that end with {SHADOW!r} are of shadows, got {self.name!r} with a sink "
                f"{table!r}: choose others"
            )
        return self

    def _check_named_columns(self, known: Iterable[str] | None, *, of_events: Iterable[str] | None = ()) -> None:
        """Refuses names that no table has.

        Args:
            known: columns of the result; None: whatever there is.
            of_events: columns of the tables beside it, which may be personal, too; None: whatever there is.
        """
        if known is None:
            return
        every = None if of_events is None else {*known, *of_events}
        asked = (("personal", self.personal, every), ("column_descriptions", self.column_descriptions, {*known}))
        for field, names, expected in asked:
            if expected is not None and (unknown := sorted(set(names) - expected)):
                raise ValueError(f"{field}: expected columns of {sorted(expected)}, got {unknown}")

    def to_json(self) -> str:
        """The whole definition as JSON, columns in their order; what is kept beside a checkpoint."""
        return json.dumps(self.model_dump(mode="json"))


class Ingest(_Definition):
    """Reads files, Kafka or a result table, checks each row and appends it to bronze, or to `<table>__quarantine` with
    the reason.

    Attributes:
        columns: payload column -> Spark SQL type; for CSV in the order of the file.
        parsing: column -> how its values are written, where that is not as usual.
        event_time: the column that says when the event happened; a TIMESTAMP.
        event_id: the column that identifies an event; None: a hash of the row's place (topic, partition and offset,
            or file and line).
        max_future: how far ahead of its arrival an event time may be; what claims more goes to the quarantine, since
            it would make all honest events late.
        arrival_time: the column that says when the event arrived, where history is replayed; None: the ingest time.
        rules: what each row must satisfy.
        contract: what becomes of events whose columns are others.
        idle_after: when the input has been silent for so long, heartbeats move the watermark on; None: never.
    """

    kind: Literal["ingest"] = "ingest"
    source: Annotated[Files | Kafka | Results, Field(discriminator="kind")]
    columns: Annotated[Mapping[str, SqlType], Field(min_length=1), FROZEN]
    parsing: Annotated[Mapping[str, Parsing], FROZEN] = {}
    event_time: str
    event_id: str | None = None
    max_future: PositiveDuration = timedelta(hours=1)
    arrival_time: str | None = None
    rules: tuple[RowRule, ...] = ()
    contract: Contract = Contract()
    idle_after: PositiveDuration | None = None

    @property
    def payload(self) -> Mapping[str, str]:
        """What bronze has of an event: the columns, and the map of other fields where these are kept."""
        kept = {UNKNOWN_FIELDS: "MAP<STRING, STRING>"} if self.contract.new == "keep" else {}
        return {**self.columns, **kept}

    def path_of(self, column: str) -> tuple[str, ...]:
        """Where the value of a column stands in an event, by the names of fields from the outside to the inside."""
        parsing = self.parsing.get(column)
        return (column,) if parsing is None or parsing.path is None else parsing.path

    @property
    def read_tables(self) -> tuple[str, ...]:
        """Names of the tables that it reads as streams."""
        return self.source.read_tables

    @property
    def reads_json(self) -> bool:
        """Whether an event is a JSON object."""
        return self.source.format == "json"

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
        if (misfit := self.source.misfit(self.columns)) is not None:
            raise ValueError(misfit)
        self._check_types()
        self._check_parsing()
        self._check_contract()
        self._check_rules()
        return self

    @field_validator("columns")
    @classmethod
    def _names_are_free(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(columns, otherwise=_OTHERWISE)
        return columns

    def _check_types(self) -> None:
        if self.source.is_csv:
            nested = {name: sql_type for name, sql_type in self.columns.items() if is_nested(sql_type)}
            if nested:
                raise ValueError(
                    f"columns: CSV holds single values, got {nested}: use STRING, and from_json in a Select"
                )
        elif self.reads_json:
            keyed = {name: sql_type for name, sql_type in self.columns.items() if has_keys_that_json_lacks(sql_type)}
            if keyed:
                raise ValueError(f"columns: the keys of a JSON object are texts, got {keyed}: use MAP<STRING, ...>")

    def _check_parsing(self) -> None:
        unknown = sorted(self.parsing.keys() - self.columns.keys())
        if unknown:
            raise ValueError(f"parsing: expected columns of {sorted(self.columns)}, got {unknown}")
        if self.parsing and self.source.is_parquet:
            raise ValueError("parsing: the values of a Parquet file have their types: leave it out")
        for name, parsing in self.parsing.items():
            sql_type = self.columns[name].strip().upper()
            if (misfit := parsing.misfit(sql_type)) is not None:
                raise ValueError(f"parsing: {name}: {misfit}, got a column of type {self.columns[name]!r}")
            if parsing.path is not None and not self.reads_json:
                raise ValueError(f"parsing: {name}: path is for JSON, got {self.source.format.upper()}: leave it out")
        if doubled := collisions({name: self.path_of(name) for name in self.columns}):
            raise ValueError(
                f"parsing: the value of {doubled[0][1]} is inside of what {doubled[0][0]} takes: leave one of them out"
            )

    def _check_contract(self) -> None:
        named = self.reads_json or self.source.has_header
        if not named and self.contract.new != "notice":
            raise ValueError(
                f"contract: new={self.contract.new!r} is for JSON objects and for CSV with a header: leave it out. "
                "A column more of a Parquet file is noticed, and not kept"
            )
        if not self.reads_json and self.contract.repeated != "quarantine":
            raise ValueError(
                f"contract: repeated is for keys of JSON objects, got {self.contract.repeated!r} for "
                f"{self.source.format.upper()}: leave it out"
            )
        if not self.reads_json and self.contract.missing != "null":
            raise ValueError(
                f"contract: missing is for fields of JSON objects, got {self.contract.missing!r} for "
                f"{self.source.format.upper()}: leave it out. A CSV file that lacks a column is set aside by itself; "
                "for Parquet, NotNull sets rows aside that lack a column"
            )
        if self.source.is_parquet and self.contract.retyped != "quarantine":
            raise ValueError(
                f"contract: retyped is for rows of JSON and CSV, got {self.contract.retyped!r} for PARQUET: leave it "
                "out. Values that do not fit are set aside with their rows, columns of another kind with their file"
            )

    @property
    def is_checked(self) -> bool:
        """Bronze always has a suite: each event has a time."""
        return True

    def _check_rules(self) -> None:
        names = [rule.name for rule in self.rules]
        for rule in self.rules:
            if names.count(rule.name) > 1:
                raise ValueError(f"rules: expected each name once, got {rule.name!r} twice: the ledger counts by name")
            if rule.severity != "fail":
                raise ValueError(
                    f"rules: {rule.name} looks at events before they are written: severity is for expectations; use "
                    "on_failure='warn'"
                )
        check_rules("rules", self.rules, tuple(self.columns), self.columns)
        for rule in self.rules:
            required = isinstance(rule, NotNull) and rule.column in (self.event_time, self.event_id)
            if required and rule.on_failure == "warn":
                raise ValueError(f"rules: {rule.name} cannot only warn: nothing downstream can place such an event")
        known = (*self.columns, *METADATA_COLUMNS)
        taken = [rule.name for rule in self.all_rules]
        check_expectations(self.expectations, taken, known, self.columns, self.event_time)
        self._check_named_columns(self.columns)


class Pipeline(_Definition):
    """Reads bronze, computes results and keeps what came too late for them.

    Attributes:
        source: a bronze table, or several as one stream.
        event_time: the column that windows and the watermark go by; None where no step needs it.
        watermark: when results are final; None where nothing waits for events.
        max_future: how far ahead of its arrival an event time may be; an event that claims more has no time for this
            pipeline, since it would make all honest events late.
        steps: in the order of execution: those that look at each event, at most one that remembers events (or
            `Deduplicate` and `Aggregate`), then those that look at each result.
    """

    kind: Literal["pipeline"] = "pipeline"
    source: Annotated[Table | Union, Field(discriminator="kind")]
    event_time: PlainColumn | None = None
    watermark: Watermark | None = None
    max_future: PositiveDuration = timedelta(hours=1)
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def source_tables(self) -> tuple[Table, ...]:
        """The bronze tables that the source is made of."""
        return self.source.tables if isinstance(self.source, Union) else (self.source,)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All bronze tables that are read as streams: the source's, and those that a step joins."""
        return (*self.source_tables, *(table for step in self.steps for table in step.tables()))

    @property
    def read_tables(self) -> tuple[str, ...]:
        """Names of the tables that it reads as streams."""
        return tuple(table.name for table in self.tables)

    @property
    def lookups(self) -> tuple[str, ...]:
        """Names of the tables in which columns are looked up."""
        return tuple(dict.fromkeys(table for step in self.steps for table in step.lookups()))

    @property
    def stateful_steps(self) -> tuple[Step, ...]:
        """The steps that remember events from batch to batch."""
        return tuple(step for step in self.steps if step.stateful)

    @property
    def row_steps(self) -> tuple[Step, ...]:
        """What happens to each event, before it meets a stateful step."""
        return self.steps[: self.steps.index(self.stateful_steps[0])] if self.stateful_steps else self.steps

    @property
    def result_steps(self) -> tuple[Step, ...]:
        """What happens to each row that the last stateful step gives; without the ranking at the end."""
        if not self.stateful_steps:
            return ()
        after = self.steps[self.steps.index(self.stateful_steps[-1]) + 1 :]
        return tuple(step for step in after if not isinstance(step, TopN))

    @property
    def top_n(self) -> TopN | None:
        """The ranking at the end, if any."""
        return next((step for step in self.steps if isinstance(step, TopN)), None)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check_order()
        self._check_time()
        for step in self.steps:
            step.check(self)
        if any(step.lookups() for step in self.result_steps):
            raise ValueError("steps: Enrich looks columns up for events: put it before the step that remembers them")
        self._check_columns()
        if self.sink.table.startswith("bronze."):
            raise ValueError(f"sink: bronze holds events as they arrived, got {self.sink.table!r}: use silver or gold")
        return self

    def _check_order(self) -> None:
        stateful = self.stateful_steps
        for before, step in pairwise(stateful):
            if before.kind not in step.may_follow:
                kinds = [each.kind for each in stateful]
                raise ValueError(
                    f"steps: expected at most one step that remembers events, got {kinds}: end this pipeline with "
                    f"{before.kind}, read its result with Ingest(source=Results('gold.…')), and go on with {step.kind} "
                    "in a second pipeline over that bronze table"
                )
            between = self.steps[self.steps.index(before) + 1 : self.steps.index(step)]
            if between:
                raise ValueError(
                    f"steps: expected {step.kind} right after {before.kind}, got {[each.kind for each in between]} "
                    "between them: put them before both"
                )

    def _check_time(self) -> None:
        if self.stateful_steps:
            return
        if self.sink.mode == "update":
            raise ValueError(
                "sink: rows that are computed from one event each never change, got mode 'update': leave it out"
            )
        if self.watermark is not None:
            raise ValueError("watermark: nothing waits for events where no step remembers them: leave it out")

    def _check_columns(self) -> None:
        """Names that are known wrong without knowing bronze's columns."""
        selects = [table.select for table in self.source_tables if table.select is not None]
        for table in self.source_tables:
            if table.select is not None and self.event_time is not None and self.event_time not in table.select:
                raise ValueError(
                    f"event_time: {table.name} does not select {self.event_time!r}; it selects {sorted(table.select)}"
                )
        # Columns of a table without `select` are bronze's own: Spark checks them when the stream starts.
        given: Columns = frozenset({*selects[0], *_KEPT_COLUMNS}) if selects else None
        names_in_use = {name.casefold() for name in (*(selects[0] if selects else ()), self.event_time or "")}
        for name in selects[0] if selects else ():
            self._check_late_name(name)
        is_result = False
        for step in self.steps:
            after = " of results" if is_result else ""
            for name in step.adds():
                if name.casefold() in names_in_use:
                    raise ValueError(
                        f"steps: {type(step).__name__}{after}: expected a new column, got {name!r}, which exists: "
                        "rename it"
                    )
                if not is_result:
                    self._check_late_name(name)
                names_in_use.add(name.casefold())
            for what, read in step.reads():
                unknown = sorted(set(read) - given) if given is not None else []
                if unknown:
                    raise ValueError(f"steps: {what}{after} reads {unknown}; expected columns of {sorted(given or ())}")
            given = step.gives(given)
            if step.stateful and given is not None:
                is_result, names_in_use = True, {name.casefold() for name in given}
        known = (*given, *_OF_RESULTS) if given is not None else None
        check_expectations(self.expectations, (), known, _RESULT_TYPES, self.event_time)
        self._check_named_columns(given, of_events=self._of_events())

    def _of_events(self) -> frozenset[str] | None:
        """Columns that tables beside the result have of its events; None: whatever the source tables have."""
        if not self._sets_aside:
            return frozenset()
        selects = [table.select for table in self.tables]
        if any(select is None for select in selects):
            return None
        return frozenset(name for select in selects for name in select or ())

    @property
    def _sets_aside(self) -> bool:
        return any(isinstance(step, Enrich) and step.missing == "quarantine" for step in self.row_steps)

    def _check_late_name(self, name: str) -> None:
        if self._sets_aside and name.casefold() in QUARANTINE_COLUMNS:
            raise ValueError(f"{name!r} is a column that Tidemark adds to quarantined rows: choose another name")
        if self.watermark is not None and self.watermark.late is not Late.DROP and name.casefold() in LATE_COLUMNS:
            raise ValueError(f"{name!r} is a column that Tidemark adds to late rows: choose another name")


_OF_RESULTS = RESULT_COLUMNS - {"window_start", "window_end", "is_final"}
_RESULT_TYPES = dict.fromkeys(("window_start", "window_end", "final_after", "revised_at"), "TIMESTAMP")

_KEPT_COLUMNS = ("_event_id", "_ingest_seq", "_ingest_time")

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
