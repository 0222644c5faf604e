"""Files of a source as Spark's readers see them, through Hadoop."""

from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.spark.java import java_class
from spark_jobs.spark.settings import LONGEST_LINE

# Hadoop looks for a checksum beside each file of a folder, and has no name for that of a file with a colon in its own.
WITHOUT_CHECKSUMS = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options with which files of any name are read."""


class Stores:
    """Looks at files and folders on whatever store they lie.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @cached_property
    def longest_line(self) -> int:
        """So many bytes a line may have."""
        return int(str(self.configuration().get(LONGEST_LINE)))

    def long_line(self, path: str) -> str:
        """What is wrong with a file of which a line is too long, in words; empty: none is."""
        return str(java_class(self._spark, "io.tidemark.storage.LongLines").find(path, self.configuration()))

    def size(self, path: str) -> int:
        """Of a file, in bytes."""
        files, place = self._at(path)
        return int(files.getFileStatus(place).getLen())

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        files, place = self._at(path)
        return bool(files.exists(place))

    def matches(self, pattern: str) -> bool:
        """Whether anything is there under a path or a pattern."""
        files, place = self._at(pattern)
        return bool(files.globStatus(place))

    def configuration(self) -> Any:
        """Hadoop's, as files of a source are read with it."""
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        for key, value in WITHOUT_CHECKSUMS.items():
            conf.set(key, value)
        return conf

    def _at(self, path: str) -> tuple[Any, Any]:
        place = java_class(self._spark, "org.apache.hadoop.fs.Path")(path)
        return place.getFileSystem(self.configuration()), place
