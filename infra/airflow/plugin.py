"""What Tidemark adds to Airflow's page: the pages of tables, in the menu *Browse*.

Airflow finds it by the entry point in pyproject.toml, in each of its processes: it imports what it needs when asked.
"""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from spark_jobs.documentation.places import PREFIX


class TablePages:
    """The application below the prefix; the API server alone imports it, with the first page that it is asked for."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        from infra.airflow.table_pages import app

        await app(scope, receive, send)


class TidemarkPlugin(AirflowPlugin):
    """Tells Airflow of the pages and of their entry in the menu."""

    name = "tidemark"
    fastapi_apps = [{"app": TablePages(), "url_prefix": PREFIX, "name": "Pages of tables"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Tables",
            # Relative: the page of Airflow says below what.
            "href": f"{PREFIX.removeprefix('/')}/index.html",
            "destination": "nav",
            "category": "browse",
            "url_route": "tables",
        }
    ]
