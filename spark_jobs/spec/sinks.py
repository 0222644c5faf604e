"""Where results go."""

from typing import Literal

from spark_jobs.spec.base import Spec
from spark_jobs.spec.sources import TableName


class Sink(Spec):
    """A Delta table of the lake.

    Attributes:
        table: `bronze.<name>`, `silver.<name>` or `gold.<name>`.
        mode: `append` writes one final row for each window and key, once the watermark has passed the window;
            `update` writes early results and upserts them as they change.
    """

    table: TableName
    mode: Literal["append", "update"] = "append"

    def __init__(self, table: str, **options: object) -> None:
        super().__init__(table=table, **options)
