"""Writes the pages of tables beside the lake."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import obstore
from obstore.store import S3Store

from spark_jobs.documentation.pages import index_page, table_page
from spark_jobs.documentation.places import below, index_path, page_path
from spark_jobs.documentation.tables import TableDocument, documents
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables.quality import broken_before, newest_results
from spark_jobs.quality.suites import suite_of
from spark_jobs.spec import Definition

_BEFORE = 20

LINK_LASTS = timedelta(hours=12)
"""So long whoever has the link can read the page."""


def publish_pages(
    lake: Lake, definition: Definition, registered: Mapping[str, Definition]
) -> tuple[TableDocument, ...]:
    """Writes the pages of the tables that a pipeline writes.

    Args:
        lake: where.
        definition: of the pipeline.
        registered: all definitions, by name.

    Returns:
        What they say; the result first.
    """
    found = tuple(documents(lake, definition, registered))
    for each in found:
        is_result = each.ref.role == "result"
        suite = suite_of(definition) if is_result else None
        newest = newest_results(lake, definition.name, each.ref.name) if is_result else []
        before = broken_before(lake, definition.name, each.ref.name, _BEFORE) if is_result else []
        _put(lake, page_path(each.ref.name), table_page(each, suite, newest, before))
    return found


def publish_all(lake: Lake, definitions: Iterable[Definition], registered: Mapping[str, Definition]) -> str:
    """Writes the pages of all these pipelines, and the list of them.

    Returns:
        The address of the list.
    """
    listed = []
    for definition in definitions:
        for each in publish_pages(lake, definition, registered):
            listed.append((each, newest_results(lake, definition.name, each.ref.name)))
    order = {"bronze": 0, "silver": 1, "gold": 2}
    listed.sort(key=lambda found: (order[found[0].ref.name.split(".")[0]], found[0].ref.name))
    _put(lake, index_path(), index_page(listed))
    return lake.path(index_path())


def address(lake: Lake, table: str) -> str:
    """Of the page of a table."""
    return lake.path(page_path(table))


def link(lake: Lake, table: str) -> str | None:
    """What a browser opens the page of a table by, without credentials and for some hours; None: it is in a folder."""
    store = lake.store
    return obstore.sign(store, "GET", page_path(table), LINK_LASTS) if isinstance(store, S3Store) else None


def link_in_airflow(table: str) -> str | None:
    """What whoever is logged in to Airflow opens the page of a table by; None: this was not started by Airflow."""
    shown = Settings().pages_url
    return below(shown, page_path(table)) if shown else None


def _put(lake: Lake, path: str, text: str) -> None:
    # Of an object without a type, a browser makes a download. A folder keeps no types.
    attributes = {"Content-Type": "text/html; charset=utf-8"} if lake.on_s3 else None
    obstore.put(lake.store, path, text.encode(), attributes=attributes)
