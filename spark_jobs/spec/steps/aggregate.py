"""Groups by window and key."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from spark_jobs.spec.base import FROZEN
from spark_jobs.spec.expressions import AggregateExpression, PlainColumn, check_column_names, columns, ungrouped_columns
from spark_jobs.spec.names import column_named
from spark_jobs.spec.steps.base import Columns, KnownColumns, Origins, StepSpec, origins_of, refuse_result_columns
from spark_jobs.spec.steps.rows import Select
from spark_jobs.spec.watermark import Late
from spark_jobs.spec.windows import Session, Window

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class Aggregate(StepSpec):
    """Groups events by window and key and computes measures over each group.

    The result has `window_start` and `window_end` (where there is a window), the columns of `by`, the measures, and
    `__events`, the number of events that it stands for.

    Attributes:
        window: `Tumbling`, `Hopping`, `Session`, or None for a running total over the whole stream.
        by: columns of the key; none for one group a window.
        measures: column -> aggregate in Spark SQL.
    """

    stateful: ClassVar[bool] = True
    may_follow: ClassVar[frozenset[str]] = frozenset({"deduplicate"})

    kind: Literal["aggregate"] = "aggregate"
    window: Annotated[Window, Field(discriminator="kind")] | None = None
    by: tuple[PlainColumn, ...] = ()
    measures: Annotated[Mapping[str, AggregateExpression], FROZEN]

    @field_validator("by", "measures")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...] | Mapping[str, str]:
        check_column_names(names)
        refuse_result_columns(names)
        return names

    @model_validator(mode="after")
    def _measures_and_key_fit(self) -> Self:
        keys = {name.casefold() for name in self.by}
        for name, sql in self.measures.items():
            if name.casefold() in keys:
                raise ValueError(
                    f"measures: {name!r} is already a column of `by` ({list(self.by)}): rename the measure"
                )
            loose = sorted(column for column in ungrouped_columns(sql) if column.casefold() not in keys)
            if loose:
                raise ValueError(
                    f"measures.{name}: {loose} stand outside of an aggregate in {sql!r}, though they are no columns of "
                    f"`by` ({list(self.by)}): aggregate them, or compute the column with a Select after Aggregate"
                )
        return self

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key and of the measures."""
        yield "Aggregate by", self.by
        for name, sql in self.measures.items():
            yield f"Aggregate measure {name!r}", columns(sql)
        if isinstance(self.window, Session) and self.window.gap_sql is not None:
            yield "Session gap", columns(self.window.gap_sql)

    def gives(self, given: Columns) -> Columns:
        """The window's bounds, the key and the measures."""
        bounds = ("window_start", "window_end") if self.window is not None else ()
        return frozenset({*bounds, *self.by, *self.measures})

    def origins(self, given: Origins, event_time: str | None, known: KnownColumns) -> Origins:
        """Those of the window's bounds, the key and the measures."""
        bounds = ("window_start", "window_end") if self.window is not None else ()
        return {
            **{name: origins_of((event_time or "",), given) for name in bounds},
            **{name: origins_of((name,), given) for name in self.by},
            **{name: origins_of(columns(sql), given) for name, sql in self.measures.items()},
        }

    def gives_in_order(self) -> Iterable[str]:
        """The measures, as Spark's state keeps them."""
        return tuple(self.measures)

    def check(self, pipeline: "Pipeline") -> None:
        """What the window, the sink and the watermark ask of each other."""
        update = pipeline.sink.mode == "update"
        if self.window is None:
            self._check_total(pipeline)
            return
        if pipeline.event_time is None or pipeline.watermark is None:
            raise ValueError("event_time and watermark: are required where the Aggregate has a window")
        if isinstance(self.window, Session):
            if update:
                raise ValueError('sink: Spark cannot update session windows: use mode="append"')
            if not self.by:
                raise ValueError("steps: Spark needs a key for session windows: name it in Aggregate(by=...)")
            if pipeline.top_n is not None:
                raise ValueError("steps: sessions of different keys share no window to rank in: leave TopN out")
        if pipeline.watermark.late is Late.UPDATE and not update:
            raise ValueError(
                f'watermark: Late.UPDATE changes published results: use Sink({pipeline.sink.table!r}, mode="update")'
            )
        self._check_time_is_no_key(pipeline)

    def _check_total(self, pipeline: "Pipeline") -> None:
        if pipeline.sink.mode != "update":
            raise ValueError(
                f"sink: a running total never becomes final, got mode 'append': "
                f'use Sink({pipeline.sink.table!r}, mode="update")'
            )
        if pipeline.watermark is not None and pipeline.stateful_steps == (self,):
            raise ValueError("watermark: a running total has no window that it could close: leave it out")
        if pipeline.top_n is not None:
            raise ValueError("steps: TopN ranks inside a window: give the Aggregate one")
        if any(step.kind == "where" for step in pipeline.result_steps):
            raise ValueError(
                "steps: a Where after a running total would have to take rows back: leave it out, and filter the table "
                "when you query it"
            )

    def _check_time_is_no_key(self, pipeline: "Pipeline") -> None:
        selects = (step for step in pipeline.row_steps if isinstance(step, Select))
        copies = {name: sql for step in selects for name, sql in step.columns.items()}
        for name in self.by:
            if pipeline.event_time in (name, column_named(copies.get(name, "").strip(" ()"))):
                raise ValueError(
                    f"steps: Aggregate by {name!r} is the event time, by which the window groups already: leave it "
                    "out, or group by something computed from it, such as to_date(...) in a Select"
                )
