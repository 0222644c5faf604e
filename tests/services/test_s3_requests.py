"""Where S3 is and who asks: AWS itself, a store of one's own, and the chain of credentials. Nothing is sent.

Not among the unit tests: AWS's client takes a second to load for the first time.
"""

import os
import sys
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import obstore
import pytest

from spark_jobs.cli import run_reporting_errors
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, first_line

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hunter2"}


@pytest.fixture(autouse=True)
def no_aws(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "")  # not set; what is set in its place ends with the test


def set_all(monkeypatch, values):
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def signed(uri="s3a://bucket/shop"):
    """The request that would be sent for an object of a lake, signed as AWS's own clients do it."""
    return urlsplit(obstore.sign(Lake.parse(uri).store, "GET", "ops/note.json", timedelta(minutes=1)))


def signer(request):
    """The key and the region that a request is signed with."""
    key, _, region, *_ = parse_qs(request.query)["X-Amz-Credential"][0].split("/")
    return key, region


class TestAddress:
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html#path-style-access
    @pytest.mark.parametrize("region", ["AWS_REGION", "AWS_DEFAULT_REGION"])
    def test_without_an_address_of_ones_own_it_is_awss(self, monkeypatch, region):
        set_all(monkeypatch, {**KEYS, region: "eu-central-1"})
        request = signed()
        assert (request.scheme, request.netloc) == ("https", "s3.eu-central-1.amazonaws.com")
        assert request.path == "/bucket/shop/ops/note.json"
        assert signer(request) == ("AKIAEXAMPLE", "eu-central-1")

    def test_the_root_of_a_bucket_may_be_a_lake(self, monkeypatch):
        set_all(monkeypatch, KEYS)
        assert signed("s3a://bucket").path == "/bucket/ops/note.json"

    def test_a_store_of_ones_own_is_asked_at_its_address(self, monkeypatch):
        set_all(monkeypatch, {**KEYS, "AWS_ENDPOINT_URL": "http://localhost:9000"})
        request = signed()
        assert (request.scheme, request.netloc, request.path) == (
            "http",
            "localhost:9000",
            "/bucket/shop/ops/note.json",
        )

    def test_variables_that_are_set_to_nothing_are_not_set(self, monkeypatch):
        set_all(monkeypatch, {**KEYS, "AWS_ENDPOINT_URL": "", "AWS_DEFAULT_REGION": "eu-west-1"})
        assert signed().netloc == "s3.eu-west-1.amazonaws.com"

    @pytest.mark.parametrize("address", ["localhost:9000", "minio", "https://"])
    def test_what_is_no_address_is_told(self, monkeypatch, capsys, address):
        set_all(monkeypatch, {**KEYS, "AWS_ENDPOINT_URL": address})
        monkeypatch.setattr(sys, "argv", ["tidemark", "status", "--lake", "s3a://bucket/shop"])
        assert run_reporting_errors() == 1
        told = capsys.readouterr().err
        assert told.startswith("error: AWS_ENDPOINT_URL: expected http://host:port or https://host, got ")
        assert repr(address) in told


class TestCredentials:
    @pytest.fixture
    def profiles(self, monkeypatch, tmp_path):
        file = tmp_path / "credentials"
        file.write_text(
            "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = a\n"
            "[analyst]\naws_access_key_id = AKIAANALYST\naws_secret_access_key = b\n"
        )
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    @pytest.mark.usefixtures("profiles")
    def test_a_profile_is_taken(self, monkeypatch):
        assert signer(signed())[0] == "AKIADEFAULT"
        monkeypatch.setenv("AWS_PROFILE", "analyst")
        assert signer(signed())[0] == "AKIAANALYST"

    @pytest.mark.usefixtures("profiles")
    def test_keys_of_the_environment_come_before_a_profile(self, monkeypatch):
        set_all(monkeypatch, {**KEYS, "AWS_PROFILE": "analyst"})
        assert signer(signed())[0] == "AKIAEXAMPLE"

    def test_none_at_all_is_told(self):
        with pytest.raises(LakeUnavailableError, match=r"found none: .* no role\. Nothing was .*AWS_PROFILE"):
            signed()

    def test_a_profile_that_is_not_there_is_told(self, monkeypatch):
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(LakeUnavailableError, match=r"profile \(nobody\) could not be found\. Nothing was"):
            signed()


class TestAnswers:
    # As obstore and deltalake print what a store answers, shortened.
    ANSWER = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchBucket</Code><Message>The specified bucket does '
        "not exist</Message><BucketName>nix</BucketName></Error>\n\nDebug source:\nGeneric {…}"
    )

    def test_the_code_and_the_message_are_kept(self):
        error = Exception(f"Generic S3 error: Error performing GET https://s3/nix - 404 Not Found: {self.ANSWER}")
        assert first_line(error) == (
            "Generic S3 error: Error performing GET https://s3/nix - 404 Not Found: NoSuchBucket: The specified bucket "
            "does not exist"
        )

    def test_also_where_they_come_lines_later(self):
        error = Exception(f"Kernel error -> Generic S3 error\n  ↳ 404 Not Found\n   ↳ {self.ANSWER}")
        assert first_line(error) == (
            "Kernel error -> Generic S3 error: 404 Not Found: NoSuchBucket: The specified bucket does not exist"
        )
