"""A shadow: another version of a pipeline that runs beside it, into a table of its own. The one place with its mark."""

from datetime import timedelta

from spark_jobs.spec.alerts import Alerts
from spark_jobs.spec.errors import DefinitionError
from spark_jobs.spec.pipeline import Pipeline, definition_from_json, is_name
from spark_jobs.spec.sinks import Sink
from spark_jobs.spec.sources import SHADOW

_CATCHING_UP = Alerts(
    max_silence=timedelta(minutes=10),
    max_watermark_lag=None,
    max_rows_behind=None,
    max_time_behind=None,
    max_processing_latency=None,
    max_late_share=None,
)
"""It begins at the start of its source: that it is behind, and what it finds late there, calls nobody."""


def shadow_of(name: str) -> str | None:
    """Whose shadow a pipeline is, or a table is a shadow's result of; None: it is none.

    Args:
        name: of the pipeline, or of its result table.
    """
    return name.removesuffix(SHADOW) if name.endswith(SHADOW) else None


def shadow(pipeline: Pipeline) -> Pipeline:
    """A pipeline as it runs beside the one of its name: under a name of its own, into a table of its own.

    Raises:
        DefinitionError: if its name is too long for the mark of a shadow.
    """
    name = pipeline.name + SHADOW
    if not is_name(name):
        raise DefinitionError(
            f"pipeline `{pipeline.name}`: its shadow would be called `{name}`, which is too long for a name by "
            f"{len(name) - 63} characters. Nothing was ordered. Give the pipeline a shorter name to try it so."
        )
    changes = {
        "name": name,
        "sink": Sink(pipeline.sink.table + SHADOW, mode=pipeline.sink.mode),
        "savepoints": None,
        "alerts": _CATCHING_UP,
        "description": f"Shadow of {pipeline.name}: {pipeline.description or 'another version of it, to be compared.'}",
    }
    # Read again, so that it is checked as a whole.
    found = definition_from_json(pipeline.model_copy(update=changes).to_json())
    if not isinstance(found, Pipeline):
        raise TypeError(f"expected a pipeline, got `{found.name}`")
    return found
