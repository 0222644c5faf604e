"""The pages of tables in Airflow: its own API server, whose users may see them, and what a task's log says of them."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode, urljoin

import pytest
from tidemark_dags.batch import Check

from spark_jobs.console.laptop.ports import free_port
from spark_jobs.control.supervision import launchers
from spark_jobs.documentation.pages import bare_index_page
from spark_jobs.documentation.places import PREFIX, below, index_path, page_path
from spark_jobs.lake import Lake
from tests.support.process import running

PAGE = '<p class="quiet"><a href="../index.html">All tables</a></p> 2 of 4 rows break it'
SECRET = "nobody is to see this"
PASSWORD = "a-password-of-the-test"
USERS = {"admin": "admin", "reader": "viewer", "guest": ""}

# What `airflow api-server` serves; tables of its database that are made at once, instead of by all migrations.
_SERVE = """
import sys
import uvicorn
from airflow import settings
from airflow.api_fastapi.app import create_app
from airflow.models import import_all_models
from airflow.models.base import Base

import_all_models()
Base.metadata.create_all(settings.engine)
uvicorn.run(create_app("core"), host="127.0.0.1", port=int(sys.argv[1]))
"""


@dataclass
class Answer:
    status: int
    text: str
    headers: dict[str, str]


@dataclass
class Server:
    """An API server of Airflow.

    Attributes:
        port: of it.
        lake: the folder of which it shows pages.
        tokens: of users who have logged in.
    """

    port: int
    lake: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        """What it answers; the path is sent as it is."""
        return self._send("GET", path, headers)

    def page(self, place: str, user: str = "admin") -> Answer:
        """What a user sees below the prefix."""
        return self.get(f"{PREFIX}/{place}", Authorization=f"Bearer {self.token(user)}")

    def token(self, user: str) -> str:
        """What a user proves with that he has logged in."""
        if user not in self.tokens:
            body = json.dumps({"username": user, "password": PASSWORD})
            answer = self._send("POST", "/auth/token", {"Content-Type": "application/json"}, body)
            self.tokens[user] = json.loads(answer.text)["access_token"]
        return self.tokens[user]

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return self.get("/api/v2/version").status == 200
        except OSError:
            return False

    def _send(self, method: str, path: str, headers: dict[str, str], body: str | None = None) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    this = Server(free_port(), home / "lake")
    put(this, page_path("gold.top_products"), PAGE)
    for path in ("secret.html", "gold.top_products/index.html", "_docs/notes.txt", "_docs/gold.top_products/data.json"):
        put(this, path, SECRET)
    put(this, "_docs/gold.top_products/other.html", SECRET)
    put(this, "_docs/Gold.Top/index.html", SECRET)
    (home / "simple_auth_manager_passwords.json.generated").write_text(json.dumps(dict.fromkeys(USERS, PASSWORD)))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{this.port}",
        "TIDEMARK_LAKE": str(this.lake),
    }
    # As `airflow` has it: with nothing of the folder in which it is started.
    command = [sys.executable, "-P", "-c", _SERVE, str(this.port)]
    log = home / "server.log"
    with running("Airflow", command, log=log, is_ready=this.is_up, environment=environment, within_s=120):
        yield this


def put(server: Server, path: str, text: str) -> Path:
    file = server.lake / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def place(table: str) -> str:
    return below("", page_path(table)).removeprefix("/")


def test_a_page_is_shown_to_a_user_with_a_token_or_a_cookie(server: Server) -> None:
    path = f"{PREFIX}/{place('gold.top_products')}"
    by_token = server.page(place("gold.top_products"), "reader")
    by_cookie = server.get(path, Cookie=f"_token={server.token('reader')}", Accept="text/html")
    for answer in (by_token, by_cookie):
        assert (answer.status, answer.text) == (200, PAGE)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_a_page_can_run_and_load_nothing_and_stays_in_no_cache(server: Server) -> None:
    headers = server.page(place("gold.top_products")).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'self'",
    }
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


@pytest.mark.parametrize(
    "path",
    ["", "index.html", "gold.top_products/index.html", "gold.no/index.html", "secret.html", "docs", "openapi.json"],
)
def test_without_a_login_there_is_nothing_and_a_browser_is_sent_to_it(server: Server, path: str) -> None:
    refused = server.get(f"{PREFIX}/{path}")
    assert (refused.status, json.loads(refused.text)) == (401, {"detail": "Not authenticated"})
    sent = server.get(f"{PREFIX}/{path}", Accept="text/html,*/*;q=0.8")
    assert (sent.status, sent.text) == (302, "")
    assert sent.headers["location"] == f"/api/v2/auth/login?{urlencode({'next': f'{PREFIX}/{path}'})}"
    # Airflow takes the page as one to come back to.
    login = server.get(sent.headers["location"])
    assert (login.status, "next=%2Ftidemark%2Ftables%2F" in login.headers["location"]) == (307, True)


def test_who_may_not_read_logs_sees_no_page(server: Server) -> None:
    for path in ("index.html", place("gold.top_products"), "secret.html"):
        answer = server.page(path, "guest")
        assert (answer.status, json.loads(answer.text)) == (403, {"detail": "Forbidden"})
    for forged in ({"Authorization": "Bearer forged"}, {"Cookie": "_token=forged"}):
        answer = server.get(f"{PREFIX}/{place('gold.top_products')}", **forged)
        assert (answer.status in (401, 403), PAGE in answer.text) == (True, False)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.html", "%2e%2e/secret.html", "..%2fsecret.html", "%2e%2e%2fsecret.html", "..%5csecret.html",
        "..\\secret.html", "gold.top_products/../../secret.html", "gold.top_products/%2e%2e/%2e%2e/secret.html",
        "../gold.top_products/index.html", "%2e%2e/gold.top_products/index.html", "%252e%252e/secret.html",
        "/index.html", "//etc/passwd", "%2fetc%2fpasswd", "{lake}/secret.html", "/{lake}/secret.html",
        "gold.top_products%2f..%2f..%2fsecret.html", "gold.top_products/index.html%00.html", "gold...%2fx/index.html",
        "gold.top_products/index.html/", "gold.top_products/index.html%0a", "gold.top_products", "gold.top_products/",
        "notes.txt", "gold.top_products/data.json", "gold.top_products/other.html", "Gold.Top/index.html",
        "_docs/index.html", "_docs/gold.top_products/index.html", "gold.top_products/INDEX.HTML", "file:///etc/passwd",
        "docs", "openapi.json",
    ],
)  # fmt: skip
def test_what_is_no_page_is_not_shown_whatever_its_path(server: Server, path: str) -> None:
    answer = server.page(path.replace("{lake}", str(server.lake)))
    assert (answer.status, answer.text) == (404, "There is no such page. The list of all tables is index.html.\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_of_a_table_without_a_page_is_told_what_writes_it(server: Server) -> None:
    answer = server.page(place("gold.none"))
    assert answer.status == 404
    assert answer.text.startswith(
        "gold.none has no page yet. `tidemark docs` writes those of all tables, `tidemark check`"
    )


def test_the_list_is_the_one_of_all_tables_or_names_those_that_have_a_page(server: Server) -> None:
    for path in ("", "index.html"):
        answer = server.page(path)
        assert (answer.status, answer.text) == (200, bare_index_page(["gold.top_products"]))
    # The links of both lead to each other.
    assert '<a href="gold.top_products/index.html">' in server.page("index.html").text
    assert urljoin(f"{PREFIX}/{place('gold.top_products')}", "../index.html") == f"{PREFIX}/index.html"
    written = put(server, index_path(), "all tables")
    try:
        assert server.page("index.html").text == "all tables"
    finally:
        written.unlink()


def test_of_a_lake_that_has_no_page_or_is_gone_is_told_so(server: Server) -> None:
    for folder, status, told in (
        (server.lake / "_docs", 404, "No table has a page yet. `tidemark docs` writes"),
        (server.lake, 503, f"lake {server.lake}: there is no such folder."),
    ):
        aside = folder.rename(folder.with_name("aside"))
        try:
            answer = server.page("index.html")
            assert (answer.status, answer.text[: len(told)]) == (status, told)
        finally:
            aside.rename(folder)
    assert server.page(place("gold.top_products")).status == 200


def test_airflow_has_the_pages_in_its_menu(server: Server) -> None:
    token = f"Bearer {server.token('admin')}"
    known = json.loads(server.get("/api/v2/plugins", Authorization=token).text)["plugins"]
    (plugin,) = (each for each in known if each["name"] == "tidemark")
    (view,) = plugin["external_views"]
    assert (view["name"], view["destination"], view["category"]) == ("Tables", "nav", "browse")
    shown = urljoin(f"http://127.0.0.1:{server.port}/", view["href"])
    assert shown == f"http://127.0.0.1:{server.port}{PREFIX}/index.html"
    errors = json.loads(server.get("/api/v2/plugins/importErrors", Authorization=token).text)
    assert errors["import_errors"] == []


@pytest.mark.parametrize("base", ["https://flow.example/team/", None])
def test_the_links_of_a_check_are_under_the_address_of_airflow(
    base: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    if base:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    monkeypatch.setenv("TIDEMARK_LAKE", Lake(str(tmp_path / "lake")).ensure_exists().uri)
    tells = "from spark_jobs.documentation.publishing import link_in_airflow as of; print(of('gold.top_products'))"
    program = (sys.executable, "-c", tells)
    monkeypatch.setattr(launchers, "LocalProcess", lambda _, start=launchers.LocalProcess: start(program))
    task = Check(task_id="check", pipeline="top_products")
    link = f"https://flow.example/team{PREFIX}/gold.top_products/index.html" if base else ""
    with caplog.at_level(logging.INFO, "tidemark"):
        task.execute({"outlet_events": {}, "ti": SimpleNamespace()})
    assert caplog.messages == ["tidemark check top_products", link or "None"]
    (button,) = task.operator_extra_links
    assert button.name == "Page of the table"
    assert button.get_link(task, ti_key=None) == link  # type: ignore[arg-type]
