"""Where everything of a lake lies."""

import os
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from obstore.store import LocalStore, ObjectStore

from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.store.s3 import s3_store, storage_options

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True)
class Lake:
    """A lake by its address.

    Attributes:
        uri: an absolute folder, or `s3a://bucket/prefix`, as `parse` writes it: no slash at the end, none doubled.
    """

    uri: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads an address as a user writes it; relative folders are taken from the working directory.

        However a place is written, it gets one address: `//`, `.`, `..` and slashes at the end are resolved, in a
        bucket as Hadoop does it, and never beyond the bucket.

        Raises:
            LakeUnavailableError: if the scheme is none that Tidemark knows.
        """
        scheme, _, rest = text.partition(":")
        if text.strip() and not _SCHEME.match(text):
            return cls(_folder(text, str(Path(text).expanduser())))
        if scheme == "file" and rest.startswith("/") and not re.match("//[^/]", rest):
            return cls(_folder(text, rest))
        bucket, _, prefix = rest.strip("/").partition("/")
        if scheme in ("s3", "s3a") and rest.startswith("//") and bucket not in ("", ".", "..") and "@" not in bucket:
            return cls(f"s3a://{bucket}{posixpath.normpath('/' + prefix.lstrip('/'))}".rstrip("/"))
        # An address with credentials is not shown.
        shown = f"{scheme}://…@…" if "@" in text else text
        raise LakeUnavailableError(
            f"lake {shown!r}: expected a folder, or s3a://bucket/prefix without credentials (they come from the "
            "environment). Set TIDEMARK_LAKE, or give --lake."
        )

    @property
    def on_s3(self) -> bool:
        """Whether the lake lies on S3 or a store that speaks S3."""
        return self.uri.startswith("s3a://")

    def path(self, *parts: str) -> str:
        """The address of something inside the lake, as Spark takes it."""
        return "/".join((self.uri, *parts))

    def table_path(self, table: str) -> str:
        """The address of a table such as `gold.top_products`, as Spark takes it."""
        return self.path(*table.split(".", 1))

    def table_uri(self, table: str) -> str:
        """The address of a table, as readers without a JVM take it."""
        return self.table_path(table).replace("s3a://", "s3://", 1)

    def source_path(self, path: str) -> str:
        """The address of an ingest's input folder: absolute, or relative to the lake."""
        if "://" in path or path.startswith("/"):
            return path.replace("s3://", "s3a://", 1)
        return self.path(path.strip("/"))

    @property
    def storage_options(self) -> dict[str, str]:
        """How readers without a JVM reach the store; credentials come from the AWS chain, not from here."""
        return storage_options() if self.on_s3 else {}

    @cached_property
    def store(self) -> ObjectStore:
        """The lake's objects by their path inside it, with conditional creates.

        Raises:
            LakeUnavailableError: if the folder of a lake is not there, or there are no credentials for its bucket.
        """
        if self.on_s3:
            return s3_store(self.uri)
        if not Path(self.uri).is_dir():
            raise LakeUnavailableError(
                f"lake {self.uri}: there is no such folder. Nothing was read or written. Is it the right one (--lake, "
                "TIDEMARK_LAKE), and is its disk mounted? A new lake is made by `tidemark up`, `run` or `supervise`."
            )
        return LocalStore(self.uri)

    def ensure_exists(self) -> Self:
        """The lake itself, whose folder is there from now on: for what begins a lake, never for what looks at one.

        Raises:
            LakeUnavailableError: if its folder cannot be made.
        """
        if not self.on_s3:
            try:
                Path(self.uri).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LakeUnavailableError(
                    f"lake {self.uri}: cannot be made ({error.strerror}). Nothing was written. "
                    "Set TIDEMARK_LAKE to a folder that you may write."
                ) from error
        return self


def _folder(text: str, path: str) -> str:
    refused = sorted(set(path) & set("%[]^|"))
    if refused:
        raise LakeUnavailableError(
            f"lake {text!r}: expected a folder without {' '.join(refused)} in its path, which readers of Delta tables "
            "take for something else. Set TIDEMARK_LAKE, or give --lake."
        )
    # POSIX leaves two slashes at the beginning alone.
    return re.sub("^//+", "/", os.path.abspath(path))
