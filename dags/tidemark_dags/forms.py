"""Fields of the trigger forms."""

from typing import Any

from airflow.sdk import Param

from spark_jobs.pipelines import problems, registry
from spark_jobs.plan import logical
from spark_jobs.spec import Ingest


def pipelines_field(*, description: str, only_registered: bool) -> Param:
    """A list to choose pipelines from.

    Args:
        description: what is said below the field.
        only_registered: refuse other names, which only the REST API and the JSON of the form can give.
    """
    known = list(registry())
    items = {"type": "string", "enum": known} if only_registered and known else {"type": "string"}
    return Param(
        [],
        description_md=description + left_out(),
        type="array",
        title="Pipelines",
        examples=known,
        values_display={name: f"{name} → {definition.sink.table}" for name, definition in registry().items()},
        items=items,
        minItems=1,
        uniqueItems=True,
    )


def pipeline_field(*, description: str) -> Param:
    """One pipeline to choose or to name: one that has run may be registered nowhere any more.

    Args:
        description: what is said below the field.
    """
    return Param(
        description_md=description + left_out(),
        type="string",
        title="Pipeline",
        minLength=1,
        examples=list(registry()),
    )


def ingests_field(*, description: str) -> Param:
    """One registered ingest to choose.

    Args:
        description: what is said below the field.
    """
    return _one_of([name for name, definition in registry().items() if isinstance(definition, Ingest)], description)


def quarantines_field(*, description: str) -> Param:
    """One registered pipeline to choose, of those that set rows aside.

    Args:
        description: what is said below the field.
    """
    plans = {name: logical.build(definition) for name, definition in registry().items()}
    return _one_of([name for name, plan in plans.items() if plan.table("quarantine") is not None], description)


def _one_of(known: list[str], description: str) -> Param:
    # With an empty list of choices the form itself would be refused.
    choices: dict[str, Any] = {"enum": known} if known else {}
    return Param(
        description_md=description + left_out(),
        type="string",
        title="Pipeline",
        **choices,
    )


def left_out() -> str:
    """What cannot be chosen because its file cannot be loaded, in Markdown; '' where all can."""
    messages = "".join(f"\n- {problem.message}" for problem in problems())
    return f"\n\n**Left out until it is fixed** (running pipelines continue):\n{messages}\n" if messages else ""
