"""What a definition means on a lake: a pipeline of which a batch was skipped has a quarantine there."""

from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import exists
from spark_jobs.plan import logical
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spec import Definition


def plan_on(lake: Lake, definition: Definition) -> LogicalPlan:
    """The plan of a definition, with the quarantine that nothing in it asks for where the lake has it.

    Args:
        lake: where.
        definition: of a pipeline.
    """
    planned = logical.build(definition)
    if planned.operator is None or planned.operator.output.sets_aside:
        return planned
    return logical.with_quarantine(planned) if exists(lake, planned.operator.output.quarantine.name) else planned
