"""What the plans of all operations have in common, so that one module can show and drive any of them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict

Say = Callable[[str], None]
"""Takes what a person is to read: one text, of one line or several."""


class Plan(Protocol):
    """What an operation will do; made without a JVM, refused where it may not be done, and written nowhere."""

    @property
    def pipeline(self) -> str:
        """Whose tables it changes, or looks at."""

    @property
    def notices(self) -> Sequence[str]:
        """What differs from what was asked for, and what comes first."""

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be done; None: something has."""


class OperationPlan(BaseModel):
    """A plan as a value, by `Plan`.

    Attributes:
        pipeline: whose tables it changes.
        notices: what differs from what was asked for.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    notices: tuple[str, ...] = ()

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be done; None: something has."""
        return None
