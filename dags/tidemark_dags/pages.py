"""Where Airflow shows the pages of tables (infra/airflow/plugin.py)."""

from typing import Any

from airflow.sdk import BaseOperatorLink

from spark_jobs.documentation.places import PREFIX, below, page_path
from tidemark_dags.tasks import definition_of, this_lake


def pages_url() -> str | None:
    """The address of all pages; None: Airflow does not know its own (`[api] base_url`)."""
    from airflow.configuration import conf

    base = conf.get("api", "base_url", fallback=None)
    return f"{base.rstrip('/')}{PREFIX}" if base else None


class PageLink(BaseOperatorLink):
    """The button that opens the page of the table that a task has checked."""

    name = "Page of the table"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Its address; Airflow asks in the task itself, when that has ended."""
        shown = pages_url()
        definition = definition_of(this_lake(), operator.pipeline) if shown else None
        return below(shown, page_path(definition.sink.table)) if shown and definition else ""
