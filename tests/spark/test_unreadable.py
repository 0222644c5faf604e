"""Which errors of a read a file is to blame for."""

import pytest

from spark_jobs.engine.sources.file_reader import _is_unreadable


@pytest.mark.parametrize(
    "cause",
    [
        "java.io.FileNotFoundException: File file:/landing/a does not exist",
        "java.lang.RuntimeException: file:/landing/a is not a Parquet file. Expected magic number at tail",
        "java.io.EOFException: Unexpected end of input stream",
    ],
)
def test_what_is_wrong_with_the_file_sets_it_aside(cause: str) -> None:
    assert _is_unreadable(
        RuntimeError(f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading.\nCaused by: {cause}")
    )


def test_a_file_whose_name_sounds_like_trouble_is_set_aside_all_the_same() -> None:
    path = "file:/landing/Connections.parquet"
    assert _is_unreadable(RuntimeError(f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {path}."))


@pytest.mark.parametrize(
    "cause",
    [
        "java.nio.file.AccessDeniedException: s3a://landing/a: getFileStatus: Forbidden (403)",
        "java.io.FileNotFoundException: /landing/a (Permission denied)",
        "java.io.FileNotFoundException: /landing/a (Too many open files)",
        "java.net.SocketTimeoutException: Read timed out",
        "java.io.IOException: Input/output error",
        "org.apache.hadoop.fs.s3a.AWSStatus500Exception: open s3a://landing/a: We encountered an internal error (500)",
        "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate. (Status Code: 503)",
    ],
)
def test_what_is_not_its_fault_stops_the_stream(cause: str) -> None:
    error = RuntimeError(f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading.\nCaused by: {cause}")
    assert not _is_unreadable(error)
