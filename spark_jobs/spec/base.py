"""The base of every value in the vocabulary: frozen, strict, with errors that a person can act on."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_jobs.spec.errors import DefinitionError


class Spec(BaseModel):
    """A frozen, validated value; unknown fields are refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DefinitionError(_describe(type(self), fields, error)) from None


def _describe(model: type[BaseModel], fields: dict[str, Any], error: ValidationError) -> str:
    name = fields.get("name")
    subject = f"{model.__name__} `{name}`" if isinstance(name, str) else model.__name__
    lines = []
    for detail in error.errors():
        place = ".".join(str(part) for part in detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        match detail["type"]:
            case "extra_forbidden":
                known = ", ".join(sorted(model.model_fields))
                message = f"no such field (got {detail['input']!r}); expected one of: {known}"
            case "missing":
                message = "is required"
            case "value_error":
                pass
            case _:
                message = f"{message[0].lower()}{message[1:]}, got {detail['input']!r}"
        lines.append(f"{subject}: {place}: {message}" if place else f"{subject}: {message}")
    return "\n".join(lines)
