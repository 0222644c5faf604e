"""Fields of the trigger forms."""

from typing import Any

from airflow.sdk import Param

from spark_jobs.pipelines import problems, registry


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


def registered_field(*, description: str) -> Param:
    """One registered pipeline to choose: any may be halted, and any may have set something aside.

    Args:
        description: what is said below the field.
    """
    known = list(registry())
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
