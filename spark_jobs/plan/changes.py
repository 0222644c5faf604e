"""What a changed definition means for the checkpoint and the tables of the one before."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from spark_jobs.plan.logical import build
from spark_jobs.spec import Aggregate, Counting, Definition, Ingest, Pipeline, Process, Running, Sliding, Union
from spark_jobs.spec.base import Spec


class Compatibility(StrEnum):
    """What a change asks for."""

    SAFE = "safe"
    """The checkpoint goes on."""
    REBUILD = "needs a new epoch"
    """The checkpoint does not fit any more."""
    REFUSED = "refused"
    """No checkpoint of this pipeline can take it."""


@dataclass(frozen=True)
class Change:
    """A field that differs.

    Attributes:
        field: such as `steps` or `source.max_files_per_trigger`.
        compatibility: what it asks for.
        why: in words.
    """

    field: str
    compatibility: Compatibility
    why: str


_SAFE: Mapping[str, str] = {
    "trigger_interval": "how often batches start is no part of what they hold",
    "job": "the checkpoint goes with the pipeline to another driver",
    "alerts": "they are looked at from outside",
    "savepoints": "they are taken beside the stream",
    "rules": "events are judged one by one when they are read, and nothing of a rule is kept in the checkpoint",
    "contract": "events are judged one by one when they are read",
    "parsing": "events are read one by one, and rows that were read keep their values",
    "expectations": "tables are checked from outside",
    "personal": "it says what samples show",
    "description": "it is for readers",
    "owner": "it is for readers",
    "column_descriptions": "they are for readers",
    "idle_after": "heartbeats move the watermark, whenever they come",
}

_REBUILD: Mapping[str, str] = {
    "source": "the checkpoint has offsets of the source as it was",
    "columns": "rows that were read have the columns as they were",
    "event_time": "the checkpoint has a watermark of the time as it was",
    "event_id": "events that were read have ids as they were made",
    "arrival_time": "events that were read were judged by the time as it was",
    "max_future": "events that were read were judged by the limit as it was",
    "watermark": "events that were read were judged by the watermark as it was",
    "steps": "the state holds what the steps as they were have made of the events",
    "sink": "the checkpoint counts the batches of the table as it was",
}

_LIMIT = (
    "events that were read were judged by the limit as it was, and the pipelines that read them were held against it"
)
_MEASURES = "the state has measures as they were"
_ORDER = "the state keeps values by their place, so that those of columns in another order would change places"
_BUILT_ANEW = "; a rebuild computes others of all events"
_RESULT_STEPS = "rows that were written stay as the steps were, so that the table would hold rows of both"
_ROW_STEPS = "events that were read have become rows by the steps as they were, and would stay beside those of the new"
_UNION = (
    "the checkpoint has offsets of the tables as they were, and Spark starts with no other number of them; what the "
    "new table holds would come behind the watermark, too"
)
_COUNTED_ANEW = "; a rebuild counts it"
_MIGRATED = (
    "the version of its processor was raised: its state goes on through `migrate`, and rows that were written stay as "
    "the version before gave them"
)
_SAME_VERSION = (
    "another code of its processor could mean something else by what was kept; a raised `version` goes on with it, "
    "through `migrate`"
)
_LOWER_VERSION = "its processor had a higher version, which may have kept what this one cannot read"


def changes(before: Definition, after: Definition) -> tuple[Change, ...]:
    """What differs between two definitions of one pipeline, as values: a field that has got a default differs in none.

    Args:
        before: which the checkpoint was begun with.
        after: which is to run on it.
    """
    if before.kind != after.kind:
        return (
            Change("kind", Compatibility.REFUSED, f"it was {_a(before.kind)}; give the {after.kind} a name of its own"),
        )
    return tuple(_differences(before, after))


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def needs_new_epoch(before: Definition, after: Definition) -> tuple[str, ...]:
    """The fields for which the checkpoint of the one cannot go on with the other."""
    return tuple(change.field for change in changes(before, after) if change.compatibility is not Compatibility.SAFE)


def gives_other_rows(before: Definition, after: Definition) -> bool:
    """Whether a processor is another one than it was, on a checkpoint that goes on: its table has rows of both.

    Args:
        before: which has run on the checkpoint.
        after: which runs on it.
    """
    return isinstance(before, Pipeline) and isinstance(after, Pipeline) and _differ_in_processor(before, after)


def _differences(before: Definition, after: Definition) -> Iterator[Change]:
    for field in type(after).model_fields:
        old, new = getattr(before, field), getattr(after, field)
        reordered = _order_differs(before, after, field)
        if old == new and not reordered:
            continue
        if field == "columns" and _only_adds(before, after):
            yield Change(field, Compatibility.SAFE, "rows that were read have null in the new ones")
        elif not reordered and _without_limits(old) == _without_limits(new):
            yield Change(field, Compatibility.SAFE, "how much a batch takes is no part of what it holds")
        elif field == "source" and _reads_revisions(before, after):
            yield Change(field, Compatibility.SAFE, "no row that was read had been revised")
        elif field == "steps" and not reordered and _raises_version(before, after):
            yield Change(field, Compatibility.SAFE, _MIGRATED)
        elif field in _SAFE:
            yield Change(field, Compatibility.SAFE, _SAFE[field])
        elif field == "max_future" and isinstance(before, Pipeline) and field not in before.model_fields_set:
            yield Change(field, Compatibility.SAFE, "the version that began the checkpoint had no such limit")
        else:
            yield Change(field, Compatibility.REBUILD, _why_not(before, after, field))


def _why_not(before: Definition, after: Definition, field: str) -> str:
    """Why a checkpoint does not go on with another value of a field."""
    if isinstance(before, Ingest) and field == "max_future":
        return _LIMIT
    if isinstance(before, Pipeline) and isinstance(after, Pipeline):
        if getattr(before, field) == getattr(after, field):
            return _ORDER
        if field == "source" and _only_adds_tables(before, after):
            return _UNION + (_COUNTED_ANEW if _can_be_built_anew(after) else "")
        if field == "steps" and (why := _why_other_steps(before, after)) is not None:
            return why
    return _REBUILD.get(field, "what was read was computed with it as it was")


def _reads_revisions(before: Definition, after: Definition) -> bool:
    """Whether revisions of a result, at which an ingest stopped, are read, and nothing else of its source differs."""
    if not isinstance(before, Ingest) or not isinstance(after, Ingest):
        return False
    return before.source.stops_at_revisions and before.source.read_tables == after.source.read_tables


def _raises_version(before: Definition, after: Definition) -> bool:
    """Whether the version of a processor was raised, and no other step differs."""
    if not isinstance(before, Pipeline) or not isinstance(after, Pipeline):
        return False
    return _differ_in_processor(before, after) and processor_version(after) > processor_version(before)


def _differ_in_processor(before: Pipeline, after: Pipeline) -> bool:
    """Whether the steps differ in what a processor does, and in nothing that shapes its rows."""
    old, new = ([_without_processor(step) for step in each.steps] for each in (before, after))
    return old == new and before.steps != after.steps


def _without_processor(step: object) -> object:
    same = {"processor": "", "code": "", "state": {}, "version": 1}
    return step.model_copy(update=same) if isinstance(step, Process) else step


def processor_version(definition: Definition) -> int:
    """The version of the processor of a definition; 0: it has none."""
    steps = definition.steps if isinstance(definition, Pipeline) else ()
    return max((step.version for step in steps if isinstance(step, Process)), default=0)


def _only_adds_tables(before: Pipeline, after: Pipeline) -> bool:
    """Whether tables come to those that are read as one stream."""
    if not isinstance(after.source, Union):
        return False
    old, new = ([_without_limits(table) for table in each.source_tables] for each in (before, after))
    return len(new) > len(old) and all(table in new for table in old)


def _why_other_steps(before: Pipeline, after: Pipeline) -> str | None:
    """What is told of steps where more is known than that they differ."""
    if [_without_measures(step) for step in before.steps] == [_without_measures(step) for step in after.steps]:
        if not any(step.gives_in_order() for step in before.stateful_steps):
            return _RESULT_STEPS
        return _MEASURES + (_BUILT_ANEW if _can_be_built_anew(after) else "")
    if _differ_in_processor(before, after):
        return _LOWER_VERSION if processor_version(after) < processor_version(before) else _SAME_VERSION
    if not before.stateful_steps and not after.stateful_steps:
        return _ROW_STEPS
    if before.stateful_steps == after.stateful_steps and before.row_steps == after.row_steps:
        return _RESULT_STEPS
    return None


def _can_be_built_anew(pipeline: Pipeline) -> bool:
    """Whether a batch computes the history of a pipeline."""
    operator = build(pipeline).operator
    return operator is not None and operator.recomputation.unit.why_no_cut is None


def _without_measures(step: object) -> object:
    if isinstance(step, Aggregate | Counting | Running | Sliding):
        return step.model_copy(update={"measures": {}})
    return step


def _only_adds(before: Definition, after: Definition) -> bool:
    """Whether columns come on top of those that were there, which stay as they are; in CSV behind them."""
    if not isinstance(before, Ingest) or not isinstance(after, Ingest):
        return False
    old, new = list(before.columns.items()), list(after.columns.items())
    return new[: len(old)] == old if after.source.is_csv else set(old) <= set(new)


def _without_limits(value: object) -> object:
    """A field of a definition, without how much of a table or a folder one batch takes, wherever that is named."""
    if isinstance(value, Spec):
        fields = [name for name in type(value).model_fields if not name.endswith("_per_trigger")]
        return type(value), [_without_limits(getattr(value, name)) for name in fields]
    return [_without_limits(each) for each in value] if isinstance(value, tuple) else value


def _order_differs(before: Definition, after: Definition, field: str) -> bool:
    """Whether columns that are the same stand in another order, where that means something."""
    if field == "columns" and isinstance(before, Ingest) and isinstance(after, Ingest):
        # The order of a CSV file's columns.
        return after.source.is_csv and list(before.columns) != list(after.columns)
    if field in ("source", "steps") and isinstance(before, Pipeline) and isinstance(after, Pipeline):
        # The order of the values in Spark's state.
        return _in_state(before, field) != _in_state(after, field)
    return False


def _in_state(pipeline: Pipeline, field: str) -> list[list[str]]:
    """The columns of a field as Spark's state keeps them: measures, and where it holds events those of events."""
    operator = build(pipeline).operator
    holds_events = operator is not None and operator.state.keeps_events and not operator.state.by_name
    if field == "source":
        return [list(table.select or ()) for table in pipeline.source_tables] if holds_events else []
    kept = [list(step.gives_in_order()) for step in pipeline.steps]
    if holds_events:
        kept += [list(step.adds()) for step in pipeline.row_steps]
        kept += [list(table.select or ()) for step in pipeline.steps for table in step.tables()]
    return kept
