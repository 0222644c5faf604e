"""Numbered records: a small value with a history, changed by compare-and-swap.

`<folder>/000007.json` is created once and never changed; the record with the highest number counts. Who wants to change
the value creates the next number: of several that try at once exactly one succeeds, on a folder as on S3, which a
conditional overwrite would not give on a folder.
"""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from obstore.exceptions import AlreadyExistsError, NotFoundError
from pydantic import BaseModel

from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object
from spark_jobs.lake.store.folders import objects_in

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T", bound=BaseModel)

log = logging.getLogger("tidemark.lake")

_KEPT = 20
_KEPT_FOR = timedelta(hours=1)
"""Who has seen a number may try to create the next one for so long: were it removed by then, that would succeed."""

# Told once by a process, however often it looks.
_torn: set[tuple[str, str]] = set()


class RecordTakenError(Exception):
    """Somebody else has created this number."""


class Records(Generic[T]):
    """The records of one folder of a lake.

    Args:
        lake: where.
        folder: relative to the lake.
        model: what each record holds.
    """

    def __init__(self, lake: Lake, folder: str, model: type[T]) -> None:
        self._lake = lake
        self._folder = folder.rstrip("/")
        self._model = model
        self._known: tuple[int, T | None] = (0, None)

    def newest_number(self) -> int:
        """Number of the record that counts; 0 where there is none."""
        return max(self._numbers(), default=0)

    def newest(self) -> tuple[int, T | None]:
        """Number and value of the record that counts; (0, None) where there is none.

        A record that is not whole, as after a loss of power, keeps its number and has the value of the one before.

        Raises:
            LakeUnavailableError: if a record that was there is gone.
        """
        while True:
            number = self.newest_number()
            if number == 0 and self._known[0] == 0:
                return self._known
            if number != self._known[0]:
                try:
                    content = bytes(self._lake.store.get(self._path(number)).bytes())
                except (NotFoundError, FileNotFoundError):
                    if number == 0 or self.newest_number() == number:
                        raise LakeUnavailableError(
                            f"lake {self._lake.uri}: {self._path(number)} is gone, though it was there a moment ago. "
                            "Nothing was changed. Check that the lake exists, and that nothing else removes its files."
                        ) from None
                    continue  # pruned between the two looks: there is a newer one
                self._known = number, self._value(number, content)
            return self._known

    def append(self, number: int, value: T) -> None:
        """Creates a record.

        Args:
            number: one more than the newest that the writer has seen.
            value: what counts from now on.

        Raises:
            RecordTakenError: if somebody else was first.
        """
        try:
            create_object(self._lake, self._path(number), value.model_dump_json().encode())
        except AlreadyExistsError:
            raise RecordTakenError(f"{self._path(number)} in {self._lake.uri}") from None
        self._known = number, value
        if number % _KEPT == 0:
            self._prune(number)

    def _value(self, number: int, content: bytes) -> T | None:
        if _is_whole(content):
            return self._model.model_validate_json(content)
        if (where := (self._lake.uri, self._path(number))) not in _torn:
            _torn.add(where)
            log.warning("%s in %s is not whole, as after a loss of power; the one before it counts", where[1], where[0])
        for before in sorted((each for each in self._numbers() if each < number), reverse=True):
            if _is_whole(content := bytes(self._lake.store.get(self._path(before)).bytes())):
                return self._model.model_validate_json(content)
        return None

    def _numbers(self) -> Iterator[int]:
        return (number for number, _ in self._entries())

    def _entries(self) -> "Iterator[tuple[int, ObjectMeta]]":
        for entry in objects_in(self._lake, self._folder):
            name = entry["path"].rsplit("/", 1)[-1].removesuffix(".json")
            if name.isdigit():
                yield int(name), entry

    def _prune(self, number: int) -> None:
        since = datetime.now(UTC) - _KEPT_FOR
        entries = [entry for each, entry in self._entries() if each < number - _KEPT]
        old = [entry["path"] for entry in entries if entry["last_modified"] <= since]
        if old:
            self._lake.store.delete(old)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:06d}.json"


def _is_whole(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
