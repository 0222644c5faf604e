"""Where results go."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from spark_jobs.spec.base import Spec
from spark_jobs.spec.sources import check_result_name


class Sink(Spec):
    """A Delta table of the lake.

    Attributes:
        table: `bronze.<name>`, `silver.<name>` or `gold.<name>`.
        mode: `append` writes one final row for each window and key, once the watermark has passed the window;
            `update` writes early results and upserts them as they change.
    """

    table: Annotated[str, AfterValidator(check_result_name)]
    mode: Literal["append", "update"] = "append"

    def __init__(self, table: str, **options: object) -> None:
        super().__init__(table=table, **options)
