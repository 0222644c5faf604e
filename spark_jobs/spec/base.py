"""The base of every value in the vocabulary: frozen, strict, with errors that a person can act on."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from spark_jobs.spec.errors import DefinitionError

_Value = TypeVar("_Value")


class FrozenMapping(dict[str, _Value]):
    """A mapping that stays as it is, in its order; it can be hashed and compared like the dictionary it was made of."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a definition cannot be changed: define another one")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


def _freeze(mapping: Mapping[str, Any]) -> FrozenMapping[Any]:
    return FrozenMapping(mapping)


FROZEN = AfterValidator(_freeze)
"""Makes a mapping field as unchangeable as the value that it belongs to."""


class Spec(BaseModel):
    """A frozen, validated value; unknown fields are refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, /, *unnamed: Any, **fields: Any) -> None:
        if unnamed:
            known = ", ".join(f"{name}=…" for name in type(self).model_fields if name != "kind")
            raise DefinitionError(f"{_subject(type(self), fields)}: expected named fields ({known}), got {unnamed!r}")
        for name, value in fields.items():
            field = type(self).model_fields.get(name)
            if isinstance(value, Spec) and field is not None and get_origin(field.annotation) is tuple:
                raise DefinitionError(
                    f"{_subject(type(self), fields)}: {name}: expected a tuple, got one {type(value).__name__}: a "
                    f"tuple of one needs a comma, {name}=({type(value).__name__}(…),)"
                )
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DefinitionError(_describe(type(self), fields, error)) from None


def _subject(model: type[BaseModel], fields: dict[str, Any]) -> str:
    name = fields.get("name")
    return f"{model.__name__} `{name}`" if isinstance(name, str) else model.__name__


def _describe(model: type[BaseModel], fields: dict[str, Any], error: ValidationError) -> str:
    subject = _subject(model, fields)
    lines = []
    details = error.errors()
    for detail in details:
        if detail["type"] == "too_short" and any(detail["loc"] == other["loc"][:-1] for other in details):
            continue  # pydantic counts only the items that are valid; the errors of the others are shown
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
            case "tuple_type":
                message = (
                    f"expected a tuple, got {detail['input']!r}: a tuple of one needs a comma, ({detail['input']!r},)"
                )
            case "too_short" if detail["ctx"]["min_length"] == 1:
                message = f"expected at least one, got {detail['input']!r}"
            case _:
                message = f"{message[0].lower()}{message[1:]}, got {detail['input']!r}"
        lines.append(f"{subject}: {place}: {message}" if place else f"{subject}: {message}")
    return "\n".join(lines)
