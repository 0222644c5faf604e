"""Each of MinIO's users is tried at what it is for, and at what it must not do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import PermissionDeniedError

from infra.minio.setup_users import MinioSetupError, setup_users
from spark_jobs.control.desired import orders
from spark_jobs.control.monitoring import mutes
from spark_jobs.control.monitoring.marks import last_look
from spark_jobs.control.monitoring.monitor import look, mark_reported
from spark_jobs.control.supervision import terms
from spark_jobs.control.supervision.lease import Lease
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import open_epoch
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.tables import query
from tests.support.builders import a_pipeline, an_ingest
from tests.support.deploying import deploy
from tests.support.minio import Minio
from tests.support.process import REPOSITORY

BUCKET, LAKE = "tidemark", "s3a://tidemark/lake"
PASSWORDS = {user: f"{user}-4f2c91" for user in ("streams", "airflow", "analysts")}
TABLES = ("lake/bronze/sales/a.parquet", "lake/gold/top/a.parquet", "lake/ops/watermarks/a.parquet")
INNER = ("lake/_checkpoints/top/1/offsets/0", "lake/_control/probe/a", "lake/landing/sales/1.json")
OF_STREAMS = (
    "lake/_control/shop/pulse/000001.json",
    "lake/_control/shop/terms/000001.json",
    "lake/_control/shop/status/000001.json",
    "lake/_control/desired/pulse/000001.json",
    "lake/_control/_supervisor/leases/000001.json",
    "lake/_control/_supervisor/renewals/000001.json",
)
OF_AIRFLOW = (
    "lake/_control/shop/desired/000001.json",
    "lake/_control/_monitor/open/000001.json",
    "lake/_control/_monitor/mutes/000001.json",
    "lake/_control/_halts/ingest_visits/000001.json",
    "lake/_savepoints/top/nightly/savepoint.json",
    "lake/ops/alerts/a.parquet",
    "lake/ops/decisions/a.parquet",
)
OUTSIDE = ("elsewhere/a", "lakeside/a")


def environment(minio: Minio, **other: str) -> dict[str, str]:
    return {
        "MINIO_ROOT_USER": minio.access_key,
        "MINIO_ROOT_PASSWORD": minio.secret_key,
        "AWS_ENDPOINT_URL": minio.endpoint,
        "TIDEMARK_LAKE": LAKE,
        **{f"MINIO_{user.upper()}_PASSWORD": password for user, password in PASSWORDS.items()},
        **other,
    }


@pytest.fixture(scope="module")
def minio(minio_server: Minio) -> Minio:
    setup_users(environment(minio_server, MINIO_STREAMS_PASSWORD="an-earlier-one"))
    setup_users(environment(minio_server))  # at every start: it finds all in place, and a password that has changed
    for key in (*TABLES, *INNER, *OF_STREAMS, *OF_AIRFLOW, *OUTSIDE):
        minio_server.client().put_object(Bucket=BUCKET, Key=key, Body=b"x")
    return minio_server


def client(minio: Minio, user: str) -> Any:
    return replace(minio, access_key=user, secret_key=PASSWORDS[user]).client()


def become(monkeypatch: pytest.MonkeyPatch, minio: Minio, user: str) -> Lake:
    for name, value in replace(minio, access_key=user, secret_key=PASSWORDS[user]).environment().items():
        monkeypatch.setenv(name, value)
    return Lake.parse(LAKE)


def refused(action: Any, **arguments: Any) -> bool:
    """Whether the store refuses for want of a permission; any other error is raised."""
    try:
        action(Bucket=BUCKET, **arguments)
    except ClientError as error:
        # A HEAD has no body to say it in.
        if error.response["Error"]["Code"] in ("AccessDenied", "403"):
            return True
        raise
    return False


def may(minio: Minio, user: str, key: str) -> str:
    """What a user may do with an object: r(ead), w(rite), d(elete)."""
    s3 = client(minio, user)
    allowed = "" if refused(s3.get_object, Key=key) else "r"
    allowed += "" if refused(s3.put_object, Key=key, Body=b"x") else "w"
    fresh = f"{key}.{user}"
    minio.client().put_object(Bucket=BUCKET, Key=fresh, Body=b"x")
    return allowed + ("" if refused(s3.delete_object, Key=fresh) else "d")


def test_streams_do_everything_in_the_lake_and_nothing_outside(minio: Minio) -> None:
    every = (*TABLES, *INNER, *OF_STREAMS, *OF_AIRFLOW)
    assert {key: may(minio, "streams", key) for key in every} == dict.fromkeys(every, "rwd")
    assert {key: may(minio, "streams", key) for key in OUTSIDE} == dict.fromkeys(OUTSIDE, "")


def test_airflow_writes_only_orders_and_the_notes_of_its_monitor(minio: Minio) -> None:
    """Above all no sign of life, term or lease: a supervisor acts on those on its host."""
    assert {key: may(minio, "airflow", key) for key in (*TABLES, *INNER, *OF_STREAMS, *OF_AIRFLOW, *OUTSIDE)} == {
        **dict.fromkeys((*TABLES, *INNER, *OF_STREAMS), "r"),
        **dict.fromkeys(OF_AIRFLOW, "rwd"),
        **dict.fromkeys(OUTSIDE, ""),
    }


def test_analysts_read_tables_and_change_nothing(minio: Minio) -> None:
    assert {key: may(minio, "analysts", key) for key in (*TABLES, *INNER, *OF_STREAMS, *OF_AIRFLOW, *OUTSIDE)} == {
        **dict.fromkeys((*TABLES, *OF_AIRFLOW[-2:]), "r"),
        **dict.fromkeys((*INNER, *OF_STREAMS, *OF_AIRFLOW[:-2], *OUTSIDE), ""),
    }


@pytest.mark.parametrize("user", PASSWORDS)
def test_nobody_lists_beyond_what_it_may_read(minio: Minio, user: str) -> None:
    s3 = client(minio, user)
    open_to_it = {"lake/gold/": True, "lake/_checkpoints/": user != "analysts", "": False, "elsewhere/": False}
    assert {prefix: not refused(s3.list_objects_v2, Prefix=prefix) for prefix in open_to_it} == open_to_it


@pytest.mark.parametrize("user", PASSWORDS)
def test_nobody_but_the_administrator_changes_the_bucket(minio: Minio, user: str) -> None:
    s3 = client(minio, user)
    assert refused(s3.delete_bucket)
    assert refused(s3.put_bucket_policy, Policy='{"Version": "2012-10-17", "Statement": []}')
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.create_bucket(Bucket="another")


def test_analysts_query_tables_that_streams_wrote(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"product_id": ["a", "b"], "units": [1, 2]})
    written = become(monkeypatch, minio, "streams")
    write_deltalake(written.table_uri("gold.revenue"), rows, storage_options=written.storage_options, mode="overwrite")

    lake = become(monkeypatch, minio, "analysts")

    table = DeltaTable(lake.table_uri("gold.revenue"), storage_options=lake.storage_options)
    assert table.to_pyarrow_table().sort_by("units").to_pydict() == rows.to_pydict()
    assert query.run(lake, "SELECT sum(units) FROM gold.revenue")[1] == [(3,)]


def test_airflow_declares_and_reports_with_what_it_may_write(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    supervised = become(monkeypatch, minio, "streams")
    assert Lease(supervised, host="h", pid=1).hold()
    open_epoch(supervised, an_ingest())
    halt = halts.Halt(pipeline="ingest_sales", epoch=1, batch_id=7, broken={"no refunds": 3}, since=now)
    halts.note_halt(supervised, halt, after=0)
    lake = become(monkeypatch, minio, "airflow")
    for _ in range(25):  # old records are removed on the way
        deploy(lake, [a_pipeline()])
        orders.stop(lake, [a_pipeline().name], by="a test")
    deploy(lake, [a_pipeline()])
    mutes.mute(lake, [a_pipeline().name], until=now + timedelta(hours=1))
    halts.decide(lake, "ingest_sales", "skip", by="ada")
    for later in (timedelta(minutes=3), timedelta(minutes=4)):
        mark_reported(lake, look(lake, now=now + later))
    with pytest.raises(PermissionDeniedError):
        Lease(lake, host="h", pid=1, clock=lambda: 0.0)._renew(1)
    term = terms.Term(host="h", supervisor="h/1", begun_at=now)
    with pytest.raises(PermissionDeniedError):
        terms.records(lake, a_pipeline().job).append(1, term)

    assert last_look(become(monkeypatch, minio, "streams")) == now + timedelta(minutes=4)
    lake = become(monkeypatch, minio, "analysts")
    assert query.run(lake, "SELECT kind, event, muted FROM ops.alerts")[1] == [("no-supervisor", "began", True)]
    assert query.run(lake, "SELECT action, decided_by FROM ops.decisions")[1] == [("skip", "ada")]
    with pytest.raises(PermissionDeniedError):
        last_look(lake)


def test_a_store_that_refuses_a_command_is_told_without_a_traceback(
    minio: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, minio, "streams")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-one")
    program = [sys.executable, "-m", "spark_jobs", "status", "--lake", LAKE]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == LakeUnavailableError.exit_code
    assert done.stderr.startswith("error: the lake's store cannot be used: ")
    assert "Traceback" not in done.stderr
    assert "SignatureDoesNotMatch" in done.stderr
    assert "credentials" in done.stderr


# From the environment: test_streams_do_everything_in_the_lake_and_nothing_outside
@pytest.mark.long
def test_streams_find_their_credentials_in_a_profile(minio: Minio, tmp_path: Path) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text(
        f"[streams]\naws_access_key_id = streams\naws_secret_access_key = {PASSWORDS['streams']}\n", encoding="utf-8"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    of_profile = {
        **inherited,
        "AWS_ENDPOINT_URL": minio.endpoint,
        "AWS_SHARED_CREDENTIALS_FILE": str(profiles),
        "AWS_PROFILE": "streams",
        "TIDEMARK_LAKE": LAKE,
    }

    def tidemark(*arguments: str) -> str:
        program = [sys.executable, "-m", "spark_jobs", *arguments]
        done = subprocess.run(program, capture_output=True, text=True, check=False, env=of_profile, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tidemark("simulate", "--streams", "payments", "--rows", "500", "--malformed", "0", "--future", "0")
    tidemark("run", "ingest_payments", "--until-caught-up")
    assert tidemark("sql", "SELECT count(*) AS payments FROM bronze.payments").split() == ["payments", "500"]


def test_a_lake_that_the_policies_do_not_name_is_refused(minio: Minio) -> None:
    with pytest.raises(MinioSetupError, match=r"policies/streams\.json is for"):
        setup_users(environment(minio, TIDEMARK_LAKE="s3a://tidemark/other"))


def test_a_wrong_administrator_is_told_what_to_check(minio: Minio) -> None:
    with pytest.raises(MinioSetupError, match="MINIO_ROOT_PASSWORD are those it was started with") as raised:
        setup_users(environment(minio, MINIO_ROOT_PASSWORD="not-the-right-one"))
    assert "not-the-right-one" not in str(raised.value)


def test_a_missing_password_is_named(minio: Minio) -> None:
    with pytest.raises(MinioSetupError, match="MINIO_AIRFLOW_PASSWORD: expected a value"):
        setup_users(environment(minio, MINIO_AIRFLOW_PASSWORD=""))
