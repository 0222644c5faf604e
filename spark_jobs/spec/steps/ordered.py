"""Measures over the events of a key in order of event time, row by row."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from spark_jobs.spec.base import FROZEN
from spark_jobs.spec.durations import PositiveDuration
from spark_jobs.spec.expressions import AggregateExpression, PlainColumn, check_column_names, columns, ungrouped_columns
from spark_jobs.spec.steps.base import Columns, KnownColumns, Origins, StepSpec, origins_of, refuse_result_columns
from spark_jobs.spec.watermark import Late

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class _InOrder(StepSpec):
    """What `Sliding`, `Counting` and `Running` have in common.

    Events of a key are taken in the order of their event time, those of one instant in the order in which they arrived,
    once the watermark has passed them. Events behind the watermark are late.
    """

    stateful: ClassVar[bool] = True

    by: tuple[PlainColumn, ...] = ()
    measures: Annotated[Mapping[str, AggregateExpression], FROZEN, Field(min_length=1)]

    @field_validator("by", "measures")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...] | Mapping[str, str]:
        check_column_names(names)
        refuse_result_columns(names)
        return names

    @model_validator(mode="after")
    def _measures_aggregate(self) -> "_InOrder":
        for name, sql in self.measures.items():
            if loose := sorted(ungrouped_columns(sql)):
                raise ValueError(
                    f"measures.{name}: {loose} stand outside of an aggregate in {sql!r}: aggregate them, or compute "
                    f"the column with a Select after {type(self).__name__}"
                )
        return self

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key and of the measures."""
        step = type(self).__name__
        yield f"{step} by", self.by
        for name, sql in self.measures.items():
            yield f"{step} measure {name!r}", columns(sql)

    def adds(self) -> Iterable[str]:
        """The measures."""
        return tuple(self.measures)

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """Those of the events and of the measures."""
        return {**given, **{name: origins_of(columns(sql), given) for name, sql in self.measures.items()}}

    def check(self, pipeline: "Pipeline") -> None:
        """It needs a watermark, and what it has written never changes."""
        step = type(self).__name__
        if pipeline.event_time is None or pipeline.watermark is None:
            raise ValueError(f"event_time and watermark: are required where {step} waits for events by their time")
        if pipeline.sink.mode == "update":
            raise ValueError(f"sink: a row of {step} is final when it is written, got mode 'update': leave it out")
        if pipeline.watermark.late is Late.UPDATE:
            raise ValueError(f"watermark: Late.UPDATE changes published results, which {step} does not: use another")


class Sliding(_InOrder):
    """Adds to each event measures over the events of its key in the time before it: (t - size, t].

    The event itself belongs to its window, and so do others of its instant.

    Attributes:
        size: length of the window that ends with each event.
        by: columns of the key; none: all events are one key. Null is a value like others.
        measures: column -> aggregate in Spark SQL.
    """

    kind: Literal["sliding"] = "sliding"
    size: PositiveDuration

    def __init__(self, size: str | timedelta, **options: object) -> None:
        StepSpec.__init__(self, size=size, **options)


class Counting(_InOrder):
    """Computes measures over each `size` consecutive events of a key.

    A row has the key, the time of the last of its events, the measures, and the last event's own id. Events that make
    no full group yet wait in state.

    Attributes:
        size: how many events make a row.
        by: columns of the key; none: all events are one key. Null is a value like others.
        measures: column -> aggregate in Spark SQL.
    """

    kind: Literal["counting"] = "counting"
    size: Annotated[int, Field(ge=1, le=1_000_000)]

    def __init__(self, size: int, **options: object) -> None:
        StepSpec.__init__(self, size=size, **options)

    def gives(self, given: Columns) -> Columns:
        """The key, the time and the measures; which column has the time, only the pipeline knows."""
        return None

    def check(self, pipeline: "Pipeline") -> None:
        """As the others; a key is no time."""
        super().check(pipeline)
        if pipeline.event_time in self.by:
            raise ValueError(f"steps: Counting by {pipeline.event_time!r}, the event time: leave it out")


class Running(_InOrder):
    """Adds to each event measures over all events of its key up to it: a balance and its history.

    The state has one row for each key, for ever.

    Attributes:
        by: columns of the key; none: all events are one key. Null is a value like others.
        measures: column -> aggregate in Spark SQL whose state is of fixed size, such as sum, count, avg, min, max.
    """

    kind: Literal["running"] = "running"

    def gives_in_order(self) -> Iterable[str]:
        """The measures: the state keeps what they have come to, not the events."""
        return tuple(self.measures)
