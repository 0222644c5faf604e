"""How the values of a column are written in the source, where that is not as usual."""

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from spark_jobs.spec.base import Spec

TimeUnit = Literal["seconds", "millis", "micros", "nanos"]
Rounding = Literal["half_up", "half_even", "down"]


def _way(path: object) -> object:
    return tuple(path.split(".")) if isinstance(path, str) else path


def _named(path: tuple[str, ...]) -> tuple[str, ...]:
    if not all(path):
        raise ValueError(f"expected the names of fields, such as 'meta.sent_at', got {'.'.join(path)!r}")
    return path


class Parsing(Spec):
    """How the values of one column are written in the source.

    Attributes:
        path: JSON: where the value stands, by the names of fields from the outside to the inside: `"meta.sent_at"`, or
            `("meta", "sent.at")` where a name has a dot; None: at the top, under the name of the column.
        unit: TIMESTAMP: the values are numbers of this unit since 1970, also where they come as texts. None: numbers
            are refused, as nobody can tell seconds from milliseconds.
        pattern: TIMESTAMP and DATE: the values are texts of this pattern, such as `dd/MM/uuuu HH:mm:ss`, of Java's
            `DateTimeFormatter`. None: ISO 8601. A text that names no zone is UTC.
        rounding: DECIMAL: how a number with more digits than the scale is rounded. None: it is refused.
    """

    path: Annotated[tuple[str, ...], BeforeValidator(_way), AfterValidator(_named), Field(min_length=1)] | None = None
    unit: TimeUnit | None = None
    pattern: Annotated[str, Field(min_length=1)] | None = None
    rounding: Rounding | None = None

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**fields)

    @model_validator(mode="after")
    def _one_form(self) -> "Parsing":
        if self.unit is not None and self.pattern is not None:
            raise ValueError("unit is of numbers, pattern of texts: leave one out")
        return self

    def misfit(self, sql_type: str) -> str | None:
        """What of it has no meaning for values of a type; None: nothing.

        Args:
            sql_type: in upper case.
        """
        if self.unit is not None and not sql_type.startswith("TIMESTAMP"):
            return "unit is for TIMESTAMP"
        if self.pattern is not None and not sql_type.startswith(("TIMESTAMP", "DATE")):
            return "pattern is for TIMESTAMP and DATE"
        if self.rounding is not None and not sql_type.startswith(("DECIMAL", "DEC", "NUMERIC")):
            return "rounding is for DECIMAL"
        return None


def collisions(paths: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Pairs of columns of which one would read what the other one is made of.

    Args:
        paths: column -> where its value stands.
    """
    ordered = sorted(paths.items(), key=lambda item: item[1])
    return [(name, other) for (name, path), (other, longer) in pairwise(ordered) if longer[: len(path)] == path]
