"""In a bucket Hadoop, and consoles, mark a folder by an empty object, which `obstore` lists and cannot find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spark_jobs.job.lag.files import FilesLag
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.caught_up import is_caught_up
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begin_epoch, current_epoch
from spark_jobs.lake.checkpoints.moving import plan_adoption, refuse_moved
from spark_jobs.operations.prune.execute import carry_out
from spark_jobs.operations.prune.plan import plan_prune
from spark_jobs.spec import Files, Sink
from tests.support.builders import a_pipeline, an_ingest_of_sales
from tests.support.minio import Minio


def test_marks_of_folders_are_no_files_of_a_checkpoint_and_go_with_it(minio_server: Minio, bucket: str) -> None:
    lake, client = Lake(f"s3a://{bucket}/lake"), minio_server.client()
    epoch = begin_epoch(lake, a_pipeline(name="gone", sink=Sink("gold.gone")), 1)
    # As Hadoop leaves them: of folders with files, and of one that has none.
    for folder in ("", "offsets/", "state/0/0/"):
        client.put_object(Bucket=bucket, Key=f"lake/{epoch.folder}/{folder}", Body=b"")
    for path in ("offsets/0", "commits/0"):
        lake.store.put(f"{epoch.folder}/{path}", b"")
    assert sorted(checkpoint_of(lake, "gone").files) == ["commits/0", "offsets/0"]
    carry_out(lake, plan_prune(lake, now=datetime.now(UTC) + timedelta(days=3)), print)
    assert current_epoch(lake, "gone") is None
    assert minio_server.keys(bucket) == []


def test_a_start_that_died_having_made_a_folder_is_followed_by_another(minio_server: Minio, bucket: str) -> None:
    lake, client = Lake(f"s3a://{bucket}/lake"), minio_server.client()
    ingest = an_ingest_of_sales(source=Files("landing"))
    epoch = begin_epoch(lake, ingest, 1)
    # Without the slash its name would be that of the log's first entry.
    client.put_object(Bucket=bucket, Key=f"lake/{epoch.folder}/sources/0/", Body=b"")
    refuse_moved(lake, ingest, epoch)
    assert plan_adoption(lake, ingest).before is None
    assert not is_caught_up(lake, ingest)


def test_a_folder_that_is_made_in_the_source_is_no_file_that_waits(minio_server: Minio, bucket: str) -> None:
    lake, client = Lake(f"s3a://{bucket}/lake"), minio_server.client()
    ingest = an_ingest_of_sales(source=Files("landing"))
    lake.store.put("landing/tills/1.json", b"")
    for folder in ("landing/tills/", "landing/online/"):
        client.put_object(Bucket=bucket, Key=f"lake/{folder}", Body=b"")
    lag = FilesLag(lake, ingest, "_checkpoints/ingest_sales/epoch-1").behind({})
    assert lag is not None
    assert lag.rows == 1
