"""What is kept in a lake says in which form: another version of Tidemark reads it, or says that it cannot."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from spark_jobs.lake.errors import TidemarkError


class FormatError(TidemarkError):
    """Something in a lake was written in a form that this version of Tidemark does not know."""


class PersistedValue(BaseModel):
    """A value that outlives the process which wrote it, and may be read by another version of Tidemark.

    Each class counts its own forms, in `FORMAT`, from 1. Whoever changes what a field means, or takes one away, raises
    the number and reads the forms before it; a new field with a default changes nothing. A lake of each form is kept in
    `tests/archive`.

    Attributes:
        format: in which it was written.
    """

    model_config = ConfigDict(frozen=True)

    FORMAT: ClassVar[int] = 1

    format: int = 1

    @model_validator(mode="before")
    @classmethod
    def _known_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = value.get("format", cls.FORMAT)
        if not isinstance(found, int) or not 1 <= found <= cls.FORMAT:
            raise FormatError(
                f"{cls.__name__}: expected format 1 to {cls.FORMAT}, got {found!r}: another version of Tidemark wrote "
                "it. Nothing was changed. Run the version that wrote it, or a newer one."
            )
        return {**value, "format": found}
