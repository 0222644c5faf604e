"""A step of one's own: a processor, which keeps state and sets timers for each key."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from spark_jobs.spec.base import FROZEN
from spark_jobs.spec.durations import PositiveDuration
from spark_jobs.spec.expressions import PlainColumn, SqlType, check_column_names
from spark_jobs.spec.processors import Processor, code_of, made_from
from spark_jobs.spec.steps.base import Columns, KnownColumns, Origins, StepSpec, refuse_result_columns
from spark_jobs.spec.watermark import Late

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class Process(StepSpec):
    """Runs a `Processor` over the events of each key.

    A row of the result has the key, the event time of what gave it (an event, or a timer), the processor's output, and
    `__events`: how many events of its key were taken since the row before, or since the key was forgotten.

    Attributes:
        processor: a subclass of `Processor`; kept by its name and its `code`.
        by: columns of the key. Null is a value like others.
        order: `event_time`: the events of a key in order of event time, once the watermark has passed them; `arrival`:
            as they are read.
        clock: `event_time`: timers fire when the watermark has passed them; `processing_time`: by the clock, where an
            event counts from when it arrived in bronze. That goes with order `arrival`, and without a watermark: no
            event is late.
        ttl: how long a key is remembered after its last event, by the same clock; None: until the processor forgets it.
        code: the source of the processor, taken from its file.
        output, state, version: as the processor says.
    """

    stateful: ClassVar[bool] = True

    kind: Literal["process"] = "process"
    processor: str
    by: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    order: Literal["event_time", "arrival"] = "event_time"
    clock: Literal["event_time", "processing_time"] = "event_time"
    ttl: PositiveDuration | None = None
    output: Annotated[Mapping[str, SqlType], FROZEN, Field(min_length=1)]
    state: Annotated[Mapping[str, SqlType], FROZEN]
    version: Annotated[int, Field(ge=1)] = 1
    code: str

    def __init__(self, processor: type[Processor] | None = None, **options: object) -> None:
        if isinstance(processor, type) and issubclass(processor, Processor):
            options |= {
                "processor": processor.__name__,
                "output": dict(processor.output),
                "state": dict(processor.state),
                "version": processor.version,
                "code": code_of(processor),
            }
        elif processor is not None:
            options["processor"] = processor
        super().__init__(**options)

    @field_validator("output")
    @classmethod
    def _names_are_free(cls, names: Mapping[str, str]) -> Mapping[str, str]:
        check_column_names(names)
        refuse_result_columns(names)
        return names

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        doubled = sorted({name.casefold() for name in self.output} & {name.casefold() for name in self.by})
        if doubled:
            raise ValueError(f"output: {doubled} are columns of `by` already: leave them out, or rename them")
        if self.clock == "processing_time" and self.order != "arrival":
            raise ValueError(
                'clock: processing_time goes with order="arrival": by the clock nothing waits for a watermark'
            )
        made_from(self.code, self.processor)
        return self

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key; the processor may read all."""
        yield "Process by", self.by

    def gives(self, given: Columns) -> Columns:
        """The key, the time and the output; which column has the time, only the pipeline knows."""
        return None

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """Of the output: any column of the event."""
        every = frozenset().union(*given.values()) if given else frozenset()
        own = {name: given[name] for name in (*self.by, *([event_time] if event_time else [])) if name in given}
        return {**own, **dict.fromkeys(self.output, every)}

    def check(self, pipeline: "Pipeline") -> None:
        """What the clock, the watermark and the sink ask of each other."""
        if pipeline.event_time is None:
            raise ValueError("event_time: is required where a Process gives rows their time")
        if self.clock == "event_time" and pipeline.watermark is None:
            raise ValueError("watermark: is required where a Process goes by event time")
        if self.clock == "processing_time" and pipeline.watermark is not None:
            raise ValueError("watermark: a Process that goes by the clock waits for no event: leave it out")
        if pipeline.sink.mode == "update":
            raise ValueError("sink: a row of a Process is final when it is written, got mode 'update': leave it out")
        if pipeline.watermark is not None and pipeline.watermark.late is Late.UPDATE:
            raise ValueError("watermark: Late.UPDATE changes published results, which a Process does not: use another")
        taken = sorted({pipeline.event_time} & {*self.output, *self.by})
        if taken:
            raise ValueError(
                f"steps: Process: {taken} is the event time, which each row has: leave it out, or rename it"
            )
