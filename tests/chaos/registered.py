"""The registered pipelines as drivers run them that are killed: one file a batch, at full speed."""

from datetime import timedelta

from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition, Pipeline
from tests.support import lakes


def _at_full_speed(definition: Definition) -> Definition:
    if isinstance(definition, Pipeline):
        paced: Definition = lakes.one_file_a_batch(definition)
    else:
        source = definition.source.model_copy(update={"max_files_per_trigger": 1})
        paced = definition.model_copy(update={"source": source})
    return paced.model_copy(update={"trigger_interval": timedelta(0)})


DEFINITIONS = {name: _at_full_speed(definition) for name, definition in registry().items()}
# A driver finds definitions by looking at what a file holds.
globals().update(DEFINITIONS)
