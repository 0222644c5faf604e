"""Promise 5 at its root: of several processes that create one file, exactly one succeeds, and all know who.

The stores are a local folder and a real MinIO; the writers are processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.faulty import LossyProxy, start_forgetful_store, start_lossy_proxy
from tests.services.racer import Racer, race_commits, race_rounds, start_racers
from tests.support.minio import Minio

LAKE, LOSSY, FORGETFUL, CARELESS = "lake", "lossy", "forgetful", ("careless-create", "careless-all")
"""Buckets, and with them the ways of reaching the store: S3A takes settings for each bucket."""

EVERY = 1_000


class Store:
    """A place for files that the tests can look into without the code under test."""

    def __init__(self, folder: Path | None, minio: Minio) -> None:
        self._folder = folder
        self._minio = minio

    def uri(self, path: str) -> str:
        return f"s3a://{LAKE}/{path}" if self._folder is None else f"file:{self._folder / path}"

    def names(self, path: str) -> list[str]:
        if self._folder is None:
            return [key.removeprefix(f"{path}/") for key in self._minio.keys(LAKE, f"{path}/")]
        return sorted(entry.name for entry in (self._folder / path).iterdir())

    def read(self, path: str) -> str:
        return self._minio.read(LAKE, path) if self._folder is None else (self._folder / path).read_text()

    def make_folder(self, path: str) -> None:
        """Folders need to exist before they are listed; an object store has none."""
        if self._folder is not None:
            (self._folder / path).mkdir(parents=True)
        else:
            self._minio.client().put_object(Bucket=LAKE, Key=f"{path}/", Body=b"")

    def put(self, path: str, content: str) -> None:
        if self._folder is not None:
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / path).write_text(content)
        else:
            self._minio.client().put_object(Bucket=LAKE, Key=path, Body=content.encode())


@pytest.fixture(scope="module")
def minio(minio_server: Minio) -> Minio:
    for bucket in (LAKE, LOSSY, FORGETFUL, *CARELESS):
        minio_server.create_bucket(bucket)
    return minio_server


@pytest.fixture(scope="module")
def proxy(minio: Minio) -> Iterator[LossyProxy]:
    with start_lossy_proxy(minio.endpoint) as lossy:
        yield lossy


@pytest.fixture(scope="module")
def racers(minio: Minio, proxy: LossyProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Racer]]:
    with start_forgetful_store() as forgetful:
        settings = {
            **minio.hadoop_settings(),
            "fs.s3a.attempts.maximum": "3",
            "fs.s3a.retry.limit": "1",
            "fs.s3a.retry.interval": "20ms",
            f"fs.s3a.bucket.{LOSSY}.endpoint": proxy.endpoint,
            f"fs.s3a.bucket.{FORGETFUL}.endpoint": forgetful,
            f"fs.s3a.bucket.{CARELESS[0]}.performance.flags": "create",
            f"fs.s3a.bucket.{CARELESS[1]}.performance.flags": "*",
        }
        with start_racers(2, tmp_path_factory.mktemp("racers"), settings) as started:
            yield started


@pytest.fixture(params=["folder", "minio"])
def store(request: pytest.FixtureRequest, minio: Minio, tmp_path: Path) -> Store:
    return Store(tmp_path if request.param == "folder" else None, minio)


def test_no_acknowledged_commit_of_two_processes_is_lost(store: Store, racers: list[Racer]) -> None:
    store.make_folder("races/_delta_log")
    acknowledged = race_commits(racers, "ours", store.uri("races/_delta_log"), writers=3, commits=5)
    assert sorted(acknowledged) == list(range(30))
    for version, writers in acknowledged.items():
        assert [store.read(f"races/_delta_log/{version:020d}.json").strip()] == writers
    left = [name for name in store.names("races/_delta_log") if name]
    assert left == [f"{version:020d}.json" for version in range(30)]


def test_each_entry_of_a_checkpoint_log_goes_to_one_driver(store: Store, racers: list[Racer]) -> None:
    winners = race_rounds(racers, "ours", store.uri("checkpoint/offsets"), rounds=12, every_ms=60)
    for entry, drivers in winners.items():
        assert [store.read(f"checkpoint/offsets/{entry}")] == drivers
    assert store.names("checkpoint/offsets") == sorted(map(str, range(12)))


@pytest.mark.parametrize("command", ["commit", "checkpoint"])
@pytest.mark.parametrize("answers", [1, EVERY])  # the SDK's second try is refused; or none is ever answered
def test_a_write_whose_answer_was_lost_has_won(
    command: str, answers: int, minio: Minio, proxy: LossyProxy, racers: list[Racer]
) -> None:
    name = f"answers/{command}-{answers}"
    proxy.lose(answers=answers)
    assert write_through_proxy(racers[0], command, name, "mine") == ["won"]
    assert proxy.lost == 1 if answers == 1 else proxy.lost > 1
    assert minio.keys(LOSSY, name) == [name]
    assert minio.read(LOSSY, name).strip() == "mine"


@pytest.mark.parametrize("command", ["commit", "checkpoint"])
def test_a_refusal_whose_answer_was_lost_is_a_defeat(
    command: str, minio: Minio, proxy: LossyProxy, racers: list[Racer]
) -> None:
    name = f"refusals/{command}"
    proxy.lose()
    assert write_through_proxy(racers[1], command, name, "another") == ["won"]
    proxy.lose(answers=1)
    assert write_through_proxy(racers[0], command, name, "mine") == ["lost"]
    assert proxy.lost == 1
    assert minio.read(LOSSY, name).strip() == "another"


@pytest.mark.parametrize("command", ["commit", "checkpoint"])
def test_a_write_that_never_arrived_is_an_error(
    command: str, minio: Minio, proxy: LossyProxy, racers: list[Racer]
) -> None:
    name = f"requests/{command}"
    proxy.lose(requests=EVERY)
    (answer,) = write_through_proxy(racers[0], command, name, "mine")
    assert answer.startswith("failed ")
    assert "AlreadyExists" not in answer
    assert proxy.lost > 1
    assert minio.keys(LOSSY, name) == []


def test_an_existing_file_is_not_overwritten(store: Store, racers: list[Racer]) -> None:
    store.put("existing/0.json", "theirs")
    assert racers[0].ask("commit", "ours", store.uri("existing/0.json"), "mine") == ["lost"]
    assert racers[0].ask("checkpoint", "ours", store.uri("existing/0.json"), "mine", "false") == ["lost"]
    assert store.read("existing/0.json") == "theirs"
    assert store.names("existing") == ["0.json"]


def test_an_existing_file_is_replaced_on_request(store: Store, racers: list[Racer]) -> None:
    store.put("replaced/1.delta", "old")
    assert racers[0].ask("replace", "ours", store.uri("replaced/1.delta"), "new") == ["won"]
    assert store.read("replaced/1.delta") == "new\n"
    assert racers[0].ask("checkpoint", "ours", store.uri("replaced/1.delta"), "newer", "true") == ["won"]
    assert store.read("replaced/1.delta") == "newer"
    assert store.names("replaced") == ["1.delta"]


def test_a_checksum_that_hadoop_left_goes_with_the_content_that_it_was_for(tmp_path: Path, racers: list[Racer]) -> None:
    (tmp_path / "0").write_text("old")
    (tmp_path / ".0.crc").write_text("of old")
    assert racers[0].ask("checkpoint", "ours", f"file:{tmp_path}/0", "new", "true") == ["won"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["0"]


def test_a_cancelled_file_leaves_nothing(store: Store, racers: list[Racer]) -> None:
    store.put("cancelled/0", "theirs")
    assert racers[0].ask("cancel", "ours", store.uri("cancelled/0")) == []
    assert racers[0].ask("cancel", "ours", store.uri("cancelled/1")) == []
    assert store.names("cancelled") == ["0"]
    assert store.read("cancelled/0") == "theirs"


def test_a_log_is_listed_in_order_and_without_what_a_killed_writer_left(store: Store, racers: list[Racer]) -> None:
    for name in ("10.json", "02.json", ".11.json.5a1f.tmp", "01.json"):
        store.put(f"listed/{name}", "")
    listed = racers[0].ask("list", "ours", store.uri("listed/02.json"))
    assert listed == ["file 02.json", "file 10.json"]


def test_what_is_committed_is_on_the_disk_before_its_name_is(tmp_path: Path, racers: list[Racer]) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint" / "offsets"
    calls = [call.replace(str(tmp_path), "").split() for call in racers[0].ask("forced", str(table), str(checkpoint))]
    # The name of what is written before it is linked does not matter.
    told = [" ".join("*" if word.endswith(".tmp") else word for word in call) for call in calls]
    assert told == [
        "force /table/a file.parquet",
        "force /table",
        "force *",
        "link * /table/_delta_log/00000000000000000000.json",
        "force /table/_delta_log",
        "force",
        "force /checkpoint",
        "force *",
        "link * /checkpoint/offsets/0",
        "force /checkpoint/offsets",
    ]


def test_what_lies_before_is_not_listed(minio: Minio, racers: list[Racer]) -> None:
    for number in (*range(5), 2_000):
        minio.client().put_object(Bucket=LAKE, Key=f"long/_delta_log/{number:020d}.json", Body=b"")
    listed = racers[0].ask("list", "ours", f"s3a://{LAKE}/long/_delta_log/{3:020d}.json")
    assert listed == [f"file {number:020d}.json" for number in (3, 4, 2_000)]
    assert racers[0].ask("list", "ours", f"s3a://{LAKE}/long/_delta_log/{3_000:020d}.json") == []
    (answer,) = racers[0].ask("list", "ours", f"s3a://{LAKE}/none/_delta_log/{0:020d}.json")
    assert answer.startswith("failed java.io.FileNotFoundException")


def test_the_probe_accepts_a_store_that_excludes_and_leaves_nothing(store: Store, racers: list[Racer]) -> None:
    store.put("probed/file", "")
    assert racers[0].ask("probe", store.uri("probed")) == ["true"]
    assert store.names("probed") == ["file"]


def test_the_probe_notices_a_store_that_ignores_conditions(racers: list[Racer]) -> None:
    assert racers[0].ask("probe", f"s3a://{FORGETFUL}/") == ["false"]


@pytest.mark.parametrize("bucket", CARELESS)
def test_settings_that_overwrite_silently_are_refused(bucket: str, minio: Minio, racers: list[Racer]) -> None:
    (answer,) = racers[0].ask("probe", f"s3a://{bucket}/")
    assert answer.startswith("failed java.lang.IllegalStateException")
    assert "fs.s3a.performance.flags" in answer
    assert minio.keys(bucket) == []


def write_through_proxy(racer: Racer, command: str, name: str, content: str) -> list[str]:
    """Write one exclusive object of the bucket that lies behind the proxy."""
    uri = f"s3a://{LOSSY}/{name}"
    if command == "commit":
        return racer.ask("commit", "ours", uri, content)
    return racer.ask("checkpoint", "ours", uri, content, "false")
