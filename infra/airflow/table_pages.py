"""The pages of tables as Airflow's API server shows them: to people who are logged in, and nothing else of the lake."""

from urllib.parse import urlencode

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from spark_jobs.documentation.places import PREFIX, table_of

_HEADERS = {
    # A page has its looks in itself. It runs nothing and loads nothing, whatever a value in a sample looks like.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Who has logged out does not see it in the browser's history, and after a check it is another one.
    "Cache-Control": "no-store",
}

# Its log has the same samples of rows.
_MAY_READ = requires_access_dag("GET", DagAccessEntity.TASK_LOGS, "check_quality")

app = FastAPI(title="Pages of tables", openapi_url=None, dependencies=[Depends(_MAY_READ)])


@app.get("/{path:path}")
def page(path: str) -> Response:
    """The list of all tables, or the page of one; the lake is not asked for anything else."""
    from spark_jobs.documentation.reading import read_index, read_page
    from spark_jobs.lake import Lake
    from spark_jobs.lake.settings import Settings
    from spark_jobs.spec.errors import TidemarkError

    table = table_of(path)
    if table is None and path not in ("", "index.html"):
        return _said(404, "There is no such page. The list of all tables is index.html.")
    try:
        lake = Lake.parse(Settings().lake)
        found = read_index(lake) if table is None else read_page(lake, table)
    except TidemarkError as error:
        return _said(503, str(error))
    if found is None:
        who = "`tidemark docs` writes those of all tables, `tidemark check` those of the tables that it checks."
        return _said(404, f"No table has a page yet. {who}" if table is None else f"{table} has no page yet. {who}")
    return HTMLResponse(found, headers=_HEADERS)


@app.exception_handler(HTTPException)
async def refused(request: Request, error: HTTPException) -> Response:
    """Sends a browser that is not logged in to the login, and from there to the page; others are told."""
    if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
        # Not the path of the request, from which a proxy may have taken its beginning.
        asked = f"{API_ROOT_PATH.rstrip('/')}{PREFIX}/{request.path_params.get('path', '')}"
        return RedirectResponse(f"{API_ROOT_PATH}api/v2/auth/login?{urlencode({'next': asked})}", status_code=302)
    return await http_exception_handler(request, error)


def _said(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status, headers=_HEADERS)
