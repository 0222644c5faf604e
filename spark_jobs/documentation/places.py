"""Where the pages of tables lie in a lake, for those who write them and those who show them."""

import re

FOLDER = "_docs"

PREFIX = "/tidemark/tables"
"""Below it Airflow shows what is in the folder."""

_NAME = "index.html"
_PAGE = re.compile(rf"((?:bronze|silver|gold)\.[a-z][a-z0-9_]*)/{_NAME}")


def index_path() -> str:
    """Where the list of all tables lies in the lake."""
    return f"{FOLDER}/{_NAME}"


def page_path(table: str) -> str:
    """Where the page of a table lies in the lake."""
    return f"{FOLDER}/{table}/{_NAME}"


def below(address: str, path: str) -> str:
    """The address of a page of the lake for who shows their folder at an address of its own."""
    return f"{address.rstrip('/')}/{path.removeprefix(f'{FOLDER}/')}"


def table_of(place: str) -> str | None:
    """The table whose page lies at a place below the folder; None: no page of a table lies there."""
    found = _PAGE.fullmatch(place)
    return found[1] if found else None
