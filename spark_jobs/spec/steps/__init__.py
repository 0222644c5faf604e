"""Steps of a pipeline, from its source to its sink; one file per family."""

from typing import Annotated

from pydantic import Field

from spark_jobs.spec.steps.aggregate import Aggregate
from spark_jobs.spec.steps.as_of import AsOf
from spark_jobs.spec.steps.base import RESULT_COLUMNS, Columns, StepSpec
from spark_jobs.spec.steps.deduplicate import Deduplicate
from spark_jobs.spec.steps.enrich import Enrich
from spark_jobs.spec.steps.join import Join
from spark_jobs.spec.steps.ordered import Counting, Running, Sliding
from spark_jobs.spec.steps.process import Process
from spark_jobs.spec.steps.rows import Select, Where
from spark_jobs.spec.steps.top_n import TopN

Step = Annotated[
    Where | Select | Enrich | Deduplicate | Aggregate | Join | AsOf | Sliding | Counting | Running | Process | TopN,
    Field(discriminator="kind"),
]

__all__ = [
    "RESULT_COLUMNS",
    "Aggregate",
    "AsOf",
    "Columns",
    "Counting",
    "Deduplicate",
    "Enrich",
    "Join",
    "Process",
    "Running",
    "Select",
    "Sliding",
    "Step",
    "StepSpec",
    "TopN",
    "Where",
]
