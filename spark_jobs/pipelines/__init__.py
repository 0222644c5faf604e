"""What runs: one file per pipeline. This is the folder to edit.

Every module here defines one or more `Ingest` or `Pipeline` values at its top level; `registry()` finds them.
"""

from spark_jobs.pipelines._registry import (
    UnknownPipelineError,
    load_file,
    problems,
    registered_readers,
    registry,
    resolve,
    resolve_named,
    with_sources,
)

__all__ = [
    "UnknownPipelineError",
    "load_file",
    "problems",
    "registered_readers",
    "registry",
    "resolve",
    "resolve_named",
    "with_sources",
]
