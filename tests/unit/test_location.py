"""Where everything of a lake lies."""

from pathlib import Path

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError


@pytest.fixture
def no_aws(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "uri"),
        [
            ("/data/lake", "/data/lake"),
            ("/data/lake/", "/data/lake"),
            ("/data/./other/../lake", "/data/lake"),
            ("/data/my lake#1", "/data/my lake#1"),
            ("/data/größe", "/data/größe"),
            ("file:///data/lake", "/data/lake"),
            ("file:/data/lake/", "/data/lake"),
            ("s3://bucket", "s3a://bucket"),
            ("s3://bucket/lakes/one/", "s3a://bucket/lakes/one"),
            ("s3a://bucket/lakes/one", "s3a://bucket/lakes/one"),
            ("//data//lake", "/data/lake"),
            ("file:///data//lake/.", "/data/lake"),
            ("s3a://bucket//lakes///one//", "s3a://bucket/lakes/one"),
            ("s3a://bucket/other/../lakes/./one", "s3a://bucket/lakes/one"),
            ("s3a://bucket/../one/", "s3a://bucket/one"),
            ("s3a://bucket/.", "s3a://bucket"),
            ("s3a:////bucket/one", "s3a://bucket/one"),
        ],
    )
    def test_an_address_is_read_as_people_write_it(self, text, uri):
        assert Lake.parse(text).uri == uri

    def test_a_relative_folder_lies_in_the_working_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert Lake.parse("lake") == Lake.parse("./lake") == Lake(str(tmp_path / "lake"))

    def test_a_tilde_is_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert Lake.parse("~/lake").uri == str(tmp_path / "lake")

    @pytest.mark.parametrize(
        "text",
        ["", " ", "gs://bucket/lake", "hdfs://host/lake", "s3://", "s3a:///", "s3a:/bucket", "file://host/lake"],
    )
    def test_any_other_address_is_refused_with_what_to_set(self, text):
        with pytest.raises(LakeUnavailableError) as refused:
            Lake.parse(text)
        assert repr(text) in str(refused.value)
        assert "expected a folder, or s3a://bucket/prefix" in str(refused.value)
        assert "TIDEMARK_LAKE" in str(refused.value)

    def test_credentials_in_an_address_are_refused_and_not_repeated(self):
        with pytest.raises(LakeUnavailableError) as refused:
            Lake.parse("s3a://someone:hunter2@bucket/lake")
        assert "without credentials" in str(refused.value)
        assert "hunter2" not in str(refused.value)

    def test_a_folder_that_readers_would_unescape_is_refused(self):
        with pytest.raises(LakeUnavailableError, match="without % in its path"):
            Lake.parse("/data/we%20ird")


class TestPaths:
    FOLDER, S3 = Lake("/data/lake"), Lake("s3a://bucket/lake")

    def test_a_table_lies_in_its_layer(self):
        assert self.FOLDER.table_path("gold.top_products__late") == "/data/lake/gold/top_products__late"
        assert self.S3.table_path("bronze.sales") == "s3a://bucket/lake/bronze/sales"

    def test_readers_without_a_jvm_say_s3(self):
        assert self.S3.table_uri("bronze.sales") == "s3://bucket/lake/bronze/sales"
        assert self.FOLDER.table_uri("bronze.sales") == "/data/lake/bronze/sales"

    def test_spark_says_s3a(self):
        assert self.S3.path("_checkpoints", "sales") == "s3a://bucket/lake/_checkpoints/sales"
        assert self.FOLDER.source_path("s3://other/landing") == "s3a://other/landing"
        assert self.FOLDER.source_path("s3a://other/landing") == "s3a://other/landing"

    def test_an_input_folder_is_absolute_or_lies_in_the_lake(self):
        assert self.FOLDER.source_path("/input/sales") == "/input/sales"
        assert self.FOLDER.source_path("landing/sales/") == "/data/lake/landing/sales"
        assert self.S3.source_path("landing/sales") == "s3a://bucket/lake/landing/sales"

    def test_only_one_of_them_is_on_s3(self):
        assert self.S3.on_s3
        assert not self.FOLDER.on_s3


@pytest.mark.usefixtures("no_aws")
class TestStore:
    def test_a_folder_needs_no_options(self):
        assert Lake("/data/lake").storage_options == {}

    def test_aws_needs_a_region_and_conditional_puts(self):
        assert Lake("s3a://bucket").storage_options == {"AWS_REGION": "us-east-1", "AWS_CONDITIONAL_PUT": "etag"}

    def test_a_store_of_ones_own_is_found_by_its_address(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        assert Lake("s3a://bucket").storage_options == {
            "AWS_REGION": "eu-central-1",
            "AWS_CONDITIONAL_PUT": "etag",
            "AWS_ENDPOINT_URL": "http://localhost:9000",
            "AWS_ALLOW_HTTP": "true",
        }

    def test_http_is_not_allowed_where_the_address_says_https(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example")
        assert Lake("s3a://bucket").storage_options["AWS_ALLOW_HTTP"] == "false"

    def test_without_keys_in_the_environment_readers_go_through_the_chain(self, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        assert Lake("s3a://bucket").storage_options["AWS_FORCE_CREDENTIAL_LOAD"] == "true"

    def test_credentials_are_in_no_option(self, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        assert "hunter2" not in str(Lake("s3a://bucket").storage_options)

    def test_a_folder_is_made_by_what_begins_a_lake_only(self, tmp_path):
        lake = Lake.parse(str(tmp_path / "new" / "lake"))
        with pytest.raises(LakeUnavailableError, match=r"there is no such folder.*TIDEMARK_LAKE.*mounted"):
            _ = lake.store
        assert not (tmp_path / "new").exists()
        lake.ensure_exists().store.put("ops/note.json", b"{}")
        assert Path(lake.uri, "ops", "note.json").read_bytes() == b"{}"

    def test_a_folder_that_cannot_be_made_is_told_with_the_way_out(self, tmp_path):
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(LakeUnavailableError, match=r"cannot be made.*Nothing was written.*TIDEMARK_LAKE"):
            Lake.parse(str(tmp_path / "file" / "lake")).ensure_exists()
