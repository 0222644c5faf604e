"""Reads the pages of tables where they were written."""

import obstore
from obstore.exceptions import BaseError, NotFoundError

from spark_jobs.documentation.places import FOLDER, index_path, page_path, table_of
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, first_line


def read_index(lake: Lake) -> bytes | None:
    """The list of all tables; where `tidemark docs` has not written it, that of the pages that there are.

    Returns:
        None: there is neither.

    Raises:
        LakeUnavailableError: if the lake cannot be read.
    """
    written = _read(lake, index_path())
    if written is not None or not (tables := _tables_with_pages(lake)):
        return written
    # 0.5 s, only where it is needed.
    from spark_jobs.documentation.pages import bare_index_page

    return bare_index_page(tables).encode()


def read_page(lake: Lake, table: str) -> bytes | None:
    """The page of a table; None: there is none.

    Raises:
        LakeUnavailableError: if the lake cannot be read.
    """
    return _read(lake, page_path(table))


def _tables_with_pages(lake: Lake) -> list[str]:
    try:
        folders = obstore.list_with_delimiter(lake.store, f"{FOLDER}/")["common_prefixes"]
    except (BaseError, OSError) as error:
        raise _unavailable(lake, error) from error
    places = (page_path(folder.rpartition("/")[2]).removeprefix(f"{FOLDER}/") for folder in folders)
    return sorted(table for place in places if (table := table_of(place)) is not None)


def _read(lake: Lake, path: str) -> bytes | None:
    try:
        return bytes(obstore.get(lake.store, path).bytes())
    except (NotFoundError, FileNotFoundError) as error:
        # A bucket that is not there is no page that nobody has written yet.
        if "NoSuchBucket" in str(error):
            raise _unavailable(lake, error) from error
        return None
    except (BaseError, OSError) as error:
        raise _unavailable(lake, error) from error


def _unavailable(lake: Lake, error: Exception) -> LakeUnavailableError:
    return LakeUnavailableError(f"lake {lake.uri}: cannot be read: {first_line(error)}")
