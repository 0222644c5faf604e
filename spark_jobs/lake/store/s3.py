"""How processes without a JVM reach S3: its address, its region, and credentials from the AWS chain."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.store import ObjectStore, S3Store

from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.settings import S3Settings

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider

# botocore renews what ends within ten minutes: asked every five, it never leaves dead ones with obstore.
_ASKED_AGAIN_AFTER = timedelta(minutes=5)


def s3_store(uri: str) -> ObjectStore:
    """The objects below an address such as `s3a://bucket/prefix` (`s3://` too).

    Raises:
        LakeUnavailableError: if the AWS chain has no credentials.
    """
    bucket, _, prefix = uri.partition("://")[2].partition("/")
    settings = S3Settings.of_environment()
    return S3Store(
        bucket,
        prefix=prefix.strip("/") or None,
        region=settings.region,
        # Without an address of one's own none is named, and AWS's is taken; None would be refused.
        config={"endpoint": settings.endpoint_url} if settings.endpoint_url else None,
        client_options={"allow_http": settings.plain_http},
        # What runs for long tries again by itself; a person, or the monitor, is to be told in time.
        retry_config={"retry_timeout": timedelta(seconds=20)},
        virtual_hosted_style_request=False,
        credential_provider=_credential_provider(),
    )


def storage_options() -> dict[str, str]:
    """How `deltalake` reaches S3; it goes through the AWS chain by itself."""
    settings = S3Settings.of_environment()
    options = {"AWS_REGION": settings.region, "AWS_CONDITIONAL_PUT": "etag"}
    if settings.endpoint_url:
        options |= {
            "AWS_ENDPOINT_URL": settings.endpoint_url,
            "AWS_ALLOW_HTTP": str(settings.plain_http).lower(),
        }
    if not _keys_are_given():
        # Else it goes through the chain for AWS's own address only.
        options["AWS_FORCE_CREDENTIAL_LOAD"] = "true"
    return options


def _keys_are_given() -> bool:
    return bool(os.environ.get("AWS_ACCESS_KEY_ID"))


def _credential_provider() -> "Boto3CredentialProvider | None":
    """The AWS chain for obstore, which by itself knows the environment but no profiles; None: take the environment."""
    if _keys_are_given():
        return None
    # 0.15 s, only where it is needed.
    import botocore.session
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(botocore.session.Session(), ttl=_ASKED_AGAIN_AFTER)
    except ValueError:
        found = "found none: not in the environment, not in a profile, and no role"
    except BotoCoreError as error:
        found = str(error)
    raise LakeUnavailableError(
        f"credentials for S3: {found.rstrip('.')}. Nothing was read or written. Set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role is given."
    )
