"""What a person reads when a pipeline stops: the cause, not Spark's stack traces."""

from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError

from spark_jobs.cli.errors import shown
from spark_jobs.engine.failures import StoppedError, explained, root_cause
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.errors import (
    ConcurrentDriverError,
    LakeUnavailableError,
    LedgerError,
    MissingTableError,
    SourceUnavailableError,
    TidemarkError,
)
from tests.support.builders import an_ingest

# As Spark 4.2 reported a full disk, shortened.
FULL_DISK = """An error occurred while calling o552.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/bronze/sales.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:843)
Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource
\tat org.apache.parquet.util.AutoCloseables.uncheckedClose(AutoCloseables.java:85)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 26 more
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
OVERFLOW = """Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:3000)
Caused by: org.apache.spark.SparkArithmeticException: [ARITHMETIC_OVERFLOW] integer overflow.
\tat org.apache.spark.sql.errors.ExecutionErrors.arithmeticOverflowError(ExecutionErrors.scala:129)
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def told(error: BaseException, lake: Lake) -> TidemarkError:
    found = explained(error, pipeline="sales", lake=lake, checkpoint="_checkpoints/sales")
    assert "\tat " not in str(found)
    return found


def test_a_full_disk_may_be_tried_again(lake: Lake) -> None:
    found = told(RuntimeError(FULL_DISK), lake)
    assert isinstance(found, LakeUnavailableError)
    assert found.exit_code == 75
    for part in ("`sales`", lake.uri, "no space is left", "IOException: No space left on device", "run the same"):
        assert part in str(found)


def test_an_error_in_the_data_names_its_cause(lake: Lake) -> None:
    found = told(ValueError(OVERFLOW), lake)
    assert isinstance(found, StoppedError)
    assert found.exit_code == 1
    assert "SparkArithmeticException: [ARITHMETIC_OVERFLOW] integer overflow" in str(found)
    assert "Every batch that was committed is whole" in str(found)


def test_a_lake_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    gone = Lake(str(tmp_path / "gone"))
    for error in (RuntimeError("File does not exist"), MissingTableError("table bronze.sales: not in the lake")):
        found = told(error, gone)
        assert isinstance(found, LakeUnavailableError)
        assert "the folder is gone" in str(found)
        assert str(error) in str(found)


def test_a_source_that_cannot_be_reached_is_not_told_as_the_lake(lake: Lake) -> None:
    found = told(RuntimeError("Caused by: java.net.UnknownHostException: broker1: Name or service not known"), lake)
    assert isinstance(found, SourceUnavailableError)
    assert found.exit_code == 75
    assert lake.uri not in str(found)
    assert "what it reads cannot be reached (UnknownHostException: broker1" in str(found)
    on_s3 = told(RuntimeError("Caused by: java.net.ConnectException: Connection refused"), Lake("s3a://bucket/lake"))
    assert isinstance(on_s3, LakeUnavailableError)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        # As deltalake 1.6 words them.
        (
            "Generic DeltaTable error: Parquet error: Failed to fetch metadata for file a.parquet: Object Store error: "
            "The operation lacked the necessary privileges to complete for path a.parquet: Error performing GET h "
            "in 1ms - Server returned non-2xx status code: 403 Forbidden: RequestTimeTooSkewed: The difference between",
            "the clock of this machine is too far from that of the store",
        ),
        ("Generic S3 error: Error performing PUT http://h in 20s, after 9 retries", "cannot be reached"),
    ],
)
def test_what_deltalake_meets_in_a_store_is_told_as_the_store(said: str, reason: str) -> None:
    with patch("spark_jobs.engine.failures.trouble", return_value=None):
        found = told(DeltaError(said), Lake("s3a://bucket/lake"))
        lost = told(DeltaError("Object at location a.parquet not found"), Lake("s3a://bucket/lake"))
    assert isinstance(found, LakeUnavailableError)
    assert (found.exit_code, reason in str(found)) == (75, True)
    assert isinstance(lost, StoppedError)


# As MinIO answered what deltalake 1.6 wrote to its full disk: an object, and one in parts. Shortened.
FULL_STORE = """Generic S3 error: Error performing PUT http://h/a.parquet in 2s, after 10 retries, max_retries: 10 - \
Server returned non-2xx status code: 507 Insufficient Storage: <?xml version="1.0" encoding="UTF-8"?>
<Error><Code>XMinioStorageFull</Code><Message>Storage backend has reached its minimum free drive threshold. Please \
delete a few objects to proceed.</Message><Key>a.parquet</Key></Error>"""
FULL_FOR_PARTS = """Generic S3 error: Error performing POST http://h/a?uploads= in 4s, after 10 retries - \
Server returned non-2xx status code: 500 Internal Server Error: <?xml version="1.0" encoding="UTF-8"?>
<Error><Code>InternalError</Code><Message>We encountered an internal error, please try again.: cause(no space left on \
device)</Message><Key>a</Key></Error>"""


@pytest.mark.parametrize(
    ("said", "words"),
    [(FULL_STORE, "XMinioStorageFull: Storage backend"), (FULL_FOR_PARTS, "no space left on device")],
)
def test_a_store_without_room_is_told_as_full(said: str, words: str) -> None:
    found = told(DeltaError(said), Lake("s3a://bucket/lake"))
    assert isinstance(found, LakeUnavailableError)
    assert found.exit_code == 75
    for part in ("`sales`", "s3a://bucket/lake: no space is left in its store", words, "run the same"):
        assert part in str(found)
    assert "cannot be reached" not in str(found)
    assert "<?xml" not in str(found)
    (shown_by_a_command,) = shown(BaseError(said))
    assert isinstance(shown_by_a_command, LakeUnavailableError)
    assert "no space is left in the lake's store" in str(shown_by_a_command)
    assert "AWS_ENDPOINT_URL" not in str(shown_by_a_command)


def test_a_driver_that_meets_another_in_the_log_of_files_says_so(lake: Lake) -> None:
    said = "IllegalStateException: Concurrent update to the log. Multiple streaming jobs detected for 3"
    assert isinstance(told(RuntimeError(said), lake), ConcurrentDriverError)


def test_what_tidemark_raised_stays_as_it_is(lake: Lake) -> None:
    for error in (LedgerError("figures differ"), MissingTableError("table bronze.sales: not in the lake")):
        assert told(error, lake) is error


@pytest.mark.parametrize(
    "said",
    [
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.",
        "Multiple streaming queries are concurrently using file:/lake/_checkpoints/sales/epoch-1/commits.",
    ],
)
def test_another_driver_on_the_checkpoint(lake: Lake, said: str) -> None:
    found = told(RuntimeError(said), lake)
    assert isinstance(found, ConcurrentDriverError)
    assert lake.path("_checkpoints/sales") in str(found)


@pytest.mark.parametrize(
    "said",
    [
        "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location /lake/_checkpoints/sales/epoch-1/offsets "
        "should be empty on batch 0",
        "[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] Checkpoint location /lake/_checkpoints/sales/epoch-1 is in an "
        "inconsistent state",
    ],
)
def test_a_checkpoint_of_another_driver_is_told_from_one_that_lost_files(lake: Lake, said: str) -> None:
    epoch = begin_epoch(lake, an_ingest(name="sales"), 1)
    assert isinstance(told(RuntimeError(said), lake), StoppedError)
    lake.store.put(f"{epoch.folder}/offsets/.0.half-written.tmp", b"v1")
    lake.store.put(f"{epoch.folder}/metadata", b'{"id": "a-query"}')
    assert isinstance(told(RuntimeError(said), lake), StoppedError)
    lake.store.put(f"{epoch.folder}/offsets/0", b"v1")
    assert isinstance(told(RuntimeError(said), lake), ConcurrentDriverError)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (FULL_DISK, "IOException: No space left on device"),
        ("An error occurred while calling o1.save.\n: java.lang.Error: it broke.\n\tat x", "java.lang.Error: it broke"),
        ("File does not exist.\nmore", "File does not exist"),
        ("x\nCaused by: java.lang.NullPointerException\n\tat y", "NullPointerException"),
        ("", "RuntimeError('')"),
        (
            "Caused by: org.apache.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. "
            'If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012',
            "SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012",
        ),
    ],
)
def test_the_root_cause(text: str, cause: str) -> None:
    assert root_cause(RuntimeError(text)) == cause
