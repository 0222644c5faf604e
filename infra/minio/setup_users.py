"""Give a MinIO server its bucket, and each of the three users the policy of its name in ``policies/``.

Run as ``python -m infra.minio.setup_users``; what is there already is brought up to date, so it may run at every
start. The environment says where the server is (``AWS_ENDPOINT_URL``), who administers it (``MINIO_ROOT_USER``,
``MINIO_ROOT_PASSWORD``), where the lake lies (``TIDEMARK_LAKE``) and the users' passwords
(``MINIO_STREAMS_PASSWORD``, ``MINIO_AIRFLOW_PASSWORD``, ``MINIO_ANALYSTS_PASSWORD``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import MinioAdminException, MinioException
from urllib3.exceptions import HTTPError

POLICIES = Path(__file__).parent / "policies"
USERS = ("streams", "airflow", "analysts")
"""Access keys, and the names of their policies."""

_ARN = "arn:aws:s3:::"


class MinioSetupError(Exception):
    """The server could not be set up; the message says what to do."""


def setup_users(environment: Mapping[str, str]) -> None:
    """Make the bucket, the policies and the users, or bring them up to date.

    Args:
        environment: The variables that the module names.

    Raises:
        MinioSetupError: If a variable is missing, the policies are for another lake, or the server refuses.
    """
    root, password, endpoint, lake = (
        _wanted(environment, name)
        for name in ("MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "AWS_ENDPOINT_URL", "TIDEMARK_LAKE")
    )
    passwords = {user: _wanted(environment, f"MINIO_{user.upper()}_PASSWORD") for user in USERS}
    bucket = _bucket(lake)
    address = urlsplit(endpoint)
    try:
        store = Minio(address.netloc, access_key=root, secret_key=password, secure=address.scheme == "https")
        if not store.bucket_exists(bucket):
            store.make_bucket(bucket)
        admin = MinioAdmin(
            endpoint=address.netloc, credentials=StaticProvider(root, password), secure=address.scheme == "https"
        )
        for user in USERS:
            admin.policy_add(user, policy_file=POLICIES / f"{user}.json")
            admin.user_add(user, passwords[user])
            # Set, not attached: what else the user had been given is taken away.
            admin.policy_set(user, user=user)
    except (MinioException, MinioAdminException, HTTPError) as error:
        raise MinioSetupError(
            f"MinIO at {endpoint}: {error}. The bucket or some of the users may be missing. Check that the server "
            "runs and that MINIO_ROOT_USER and MINIO_ROOT_PASSWORD are those it was started with, then run this again."
        ) from error


def _wanted(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise MinioSetupError(f"{name}: expected a value, got none. Nothing was changed. Set it in .env.")
    return value


def _bucket(lake: str) -> str:
    """The lake's bucket; a lake that the policies do not name would leave every user without it."""
    place = lake.partition("://")[2].strip("/")
    for user in USERS:
        policy = json.loads((POLICIES / f"{user}.json").read_text(encoding="utf-8"))
        resources = {resource for statement in policy["Statement"] for resource in statement["Resource"]}
        strays = sorted(
            resource
            for resource in resources
            if resource != _ARN + place.partition("/")[0] and not resource.startswith(f"{_ARN}{place}/")
        )
        if strays:
            raise MinioSetupError(
                f"TIDEMARK_LAKE is {lake}, but infra/minio/policies/{user}.json is for {', '.join(strays)}. Nothing "
                "was changed. Make them agree."
            )
    return place.partition("/")[0]


def main() -> int:
    """Run the set-up; returns the exit code."""
    try:
        setup_users(os.environ)
    except MinioSetupError as error:
        print(f"setup_users: {error}", file=sys.stderr)
        return 1
    print(f"bucket and users are in place: {', '.join(USERS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
