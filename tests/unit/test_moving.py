"""A lake that was moved or copied: a start notices before it reads, and `adopt` makes its checkpoints fit."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from spark_jobs.cli.application import app
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch, open_epoch
from spark_jobs.lake.checkpoints.moving import (
    AdoptionRefusedError,
    _as_uri,
    _plain,
    adopt,
    plan_adoption,
    refuse_moved,
)
from spark_jobs.lake.checkpoints.ran import Ran, that_have_run
from spark_jobs.lake.checkpoints.spark_log import file_entries
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.spec import Files, Sink
from tests.support import lakes
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_ingest, write

QUERY = "11111111-2222-3333-4444-555555555555"
NAMES = ["a.json", "with space.json", "so;many=signs&,+@(1).json", "50%25.json", "grün 日本.json", '[x]^|`"{}.json']


def checkpointed(lake, definition, *logs, finished=True, as_uri=None):
    """A checkpoint as Spark leaves it when the batches of these logs have ended, a list of paths each."""
    epoch, last = open_epoch(lake, definition), len(logs) - 1
    put = lambda path, *lines: lake.store.put(f"{epoch.folder}/{path}", "\n".join(lines).encode())  # noqa: E731
    put("metadata", json.dumps({"id": QUERY}))
    for number, paths in enumerate(logs):
        entries = [{"path": (as_uri or _as_uri)(path), "timestamp": 1, "batchId": number} for path in paths]
        put(f"sources/0/{number}", "v1", *(json.dumps(entry, separators=(",", ":")) for entry in entries))
        put(f"offsets/{number}", "v1", "{}", json.dumps({"logOffset": number}))
        if number < last or finished:
            put(f"commits/{number}", "v1", "{}")
        stamp = a_stamp(number, pipeline=definition.name, query_id=QUERY, ledger=a_batch(1))
        write(lake, definition.sink.table, {"n": [1]}, stamp=stamp)
    return epoch


def names_of(lake, epoch, number):
    return [entry["path"] for entry in file_entries(lake, epoch.folder, number)]


@pytest.fixture
def moved(tmp_path):
    """A lake at its new address, whose ingest has read three files at the old one."""
    old = a_lake(tmp_path / "old place/lake")
    logs = [[f"{old.uri}/landing/sales/{name}" for name in part] for part in (["1.json", "day 2/2.json"], ["3.json"])]
    checkpointed(old, an_ingest(), *logs)
    shutil.move(old.uri, tmp_path / "new")
    return Lake(str(tmp_path / "new"))


def test_a_start_refuses_to_read_a_moved_input_again(moved):
    epoch = open_epoch(moved, an_ingest())
    with pytest.raises(CheckpointError) as refused:
        refuse_moved(moved, an_ingest(), epoch)
    assert "/old place/lake/landing/sales/3.json, and the lake is " in str(refused.value)
    assert "Nothing was started, read or written" in str(refused.value)
    assert "tidemark adopt ingest_sales" in str(refused.value)


def test_a_checkpoint_that_was_adopted_knows_its_files_where_they_are(moved, tmp_path):
    epoch = open_epoch(moved, an_ingest())
    plan = plan_adoption(moved, an_ingest())
    assert (plan.before, plan.files) == (f"{tmp_path}/old place/lake", 3)
    adopt(moved, plan)
    refuse_moved(moved, an_ingest(), epoch)
    base = f"file://{moved.uri}/landing/sales"
    assert names_of(moved, epoch, 0) == [f"{base}/1.json", f"{base}/day%202/2.json"]
    assert file_entries(moved, epoch.folder, 1) == [{"path": f"{base}/3.json", "timestamp": 1, "batchId": 1}]
    before = bytes(moved.store.get(f"{epoch.folder}/sources/0/0").bytes())
    again = plan_adoption(moved, an_ingest())
    assert again.before is None
    adopt(moved, again)
    assert bytes(moved.store.get(f"{epoch.folder}/sources/0/0").bytes()) == before


def test_an_adoption_that_is_interrupted_is_none_and_can_be_repeated(moved, monkeypatch):
    epoch, plan = open_epoch(moved, an_ingest()), plan_adoption(moved, an_ingest())
    with monkeypatch.context() as patch:
        calls = []

        def once(*arguments):
            if calls:
                raise OSError("killed")
            calls.append(arguments)
            return replace(*arguments)

        from spark_jobs.lake.checkpoints import moving

        replace = moving.replace_object
        patch.setattr(moving, "replace_object", once)
        with pytest.raises(OSError, match="killed"):
            adopt(moved, plan)
    with pytest.raises(CheckpointError, match="tidemark adopt"):
        refuse_moved(moved, an_ingest(), epoch)
    adopt(moved, plan_adoption(moved, an_ingest()))
    refuse_moved(moved, an_ingest(), epoch)


def test_a_compacted_log_is_adopted_and_its_checksum_is_removed(moved):
    epoch = open_epoch(moved, an_ingest())
    folder = f"{epoch.folder}/sources/0"
    entries = [*file_entries(moved, epoch.folder, 0), *file_entries(moved, epoch.folder, 1)]
    lines = ["v1", *(json.dumps(entry, separators=(",", ":")) for entry in entries)]
    moved.store.put(f"{folder}/1.compact", "\n".join(lines).encode())
    moved.store.put(f"{folder}/.1.compact.crc", b"crc")
    adopt(moved, plan_adoption(moved, an_ingest()))
    refuse_moved(moved, an_ingest(), epoch)
    assert not [each for each in moved.store.list(f"{folder}/").collect() if each["path"].endswith(".crc")]
    assert bytes(moved.store.get(f"{folder}/1.compact").bytes()).decode().count(f"file://{moved.uri}/") == 3


def test_a_lake_at_its_place_and_an_input_outside_of_it_start(tmp_path):
    lake = a_lake(tmp_path / "lake")
    epoch = checkpointed(lake, an_ingest(), [f"{lake.uri}/landing/sales/1.json"])
    refuse_moved(lake, an_ingest(), epoch)
    outside = an_ingest(name="others", source=Files("/data/in"))
    assert refuse_moved(lake, outside, checkpointed(lake, outside, ["/data/in/1.json"])) is None
    assert plan_adoption(lake, an_ingest()).before is None
    pattern = an_ingest(name="patterns", source=Files("landing/*/sales"))
    refuse_moved(lake, pattern, checkpointed(lake, pattern, [f"{lake.uri}/landing/a/sales/1.json"]))


def test_an_input_beside_the_lake_starts_and_is_not_read_again_elsewhere(tmp_path):
    lake, beside = a_lake(tmp_path / "lake"), an_ingest(source=Files("../inbox"))
    epoch = checkpointed(lake, beside, [f"{tmp_path}/inbox/1.json"])
    refuse_moved(lake, beside, epoch)
    assert plan_adoption(lake, beside).before is None
    (tmp_path / "other").mkdir()
    moved = Lake(str(shutil.move(lake.uri, tmp_path / "other/lake")))
    with pytest.raises(CheckpointError, match="Spark would take every file for a new one"):
        refuse_moved(moved, beside, epoch)
    with pytest.raises(AdoptionRefusedError, match=r"its input \.\./inbox does not lie in the lake"):
        plan_adoption(moved, beside)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_written_as_java_writes_it(name):
    path = f"/lake/{name}"
    assert _plain(_as_uri(path)) == path
    assert _plain("file:/lake/a%20b") == _plain("file:///lake/a%20b") == "/lake/a b"
    assert _as_uri("/a b/ü%;=x") == "file:///a%20b/ü%25;=x"
    assert _as_uri("s3a://bucket/a b") == "s3a://bucket/a%20b"
    assert _as_uri("/a b", "file:/old/1.json") == "file:/a%20b"


def test_a_lake_may_move_from_a_store_to_a_folder(tmp_path):
    lake = a_lake(tmp_path / "lake")
    there = "s3a://bucket/a lake/landing/sales/1.json"
    epoch = checkpointed(lake, an_ingest(), [there])
    assert plan_adoption(lake, an_ingest()).before == "s3a://bucket/a lake"
    adopt(lake, plan_adoption(lake, an_ingest()))
    assert names_of(lake, epoch, 0) == [f"file://{lake.uri}/landing/sales/1.json"]


class TestRefused:
    def test_where_a_path_has_an_unknown_form(self, tmp_path):
        lake = a_lake(tmp_path / "lake")
        checkpointed(lake, an_ingest(), ["/old/landing/sales/a%2Cb"], as_uri=lambda path: f"file://{path}")
        with pytest.raises(AdoptionRefusedError, match="in a form that is not known here"):
            plan_adoption(lake, an_ingest())

    def test_where_nothing_tells_the_old_place(self, tmp_path):
        lake = a_lake(tmp_path / "lake")
        checkpointed(lake, an_ingest(), ["/a/landing/sales/1"], ["/b/landing/sales/2"])
        with pytest.raises(AdoptionRefusedError, match=r"nothing tells where the lake was.*--from ADDRESS"):
            plan_adoption(lake, an_ingest())
        with pytest.raises(AdoptionRefusedError, match=r"/b/landing/sales/2, which was not in landing/sales .* /a\."):
            plan_adoption(lake, an_ingest(), before="/a")

    def test_where_two_places_are_possible_until_one_is_named(self, tmp_path):
        lake = a_lake(tmp_path / "lake")
        checkpointed(lake, an_ingest(), ["/a/landing/sales/landing/sales/1"])
        with pytest.raises(AdoptionRefusedError, match="may have been at /a or /a/landing/sales"):
            plan_adoption(lake, an_ingest())
        assert plan_adoption(lake, an_ingest(), before="/a/landing/sales").files == 1

    def test_where_a_batch_has_written_its_quarantine_alone(self, tmp_path):
        lake, ingest = a_lake(tmp_path / "lake"), an_ingest()
        epoch = checkpointed(lake, ingest, ["/a/landing/sales/1"])
        lake.store.put(f"{epoch.folder}/offsets/1", b'v1\n{}\n{"logOffset":0}')
        stamp = a_stamp(1, pipeline=ingest.name, role="quarantine", query_id=QUERY)
        write(lake, "bronze.sales__quarantine", {"n": [1]}, stamp=stamp)
        with pytest.raises(AdoptionRefusedError, match="batch 1 was interrupted when only its quarantine was written"):
            plan_adoption(lake, ingest)

    def test_where_tables_were_written_anew(self, tmp_path):
        lake = a_lake(tmp_path / "lake")
        columns = {"product_id": lakes.pa.string(), "sold_at": lakes.TIMESTAMP}
        lakes.Bronze(lake, "bronze.sales", columns, "sold_at").append([])
        epoch = checkpointed(lake, a_pipeline(), [])
        lake.store.put(f"{epoch.folder}/offsets/0", b'v1\n{}\n{"reservoirId":"other","reservoirVersion":1}')
        with pytest.raises(AdoptionRefusedError, match=r"id other, and bronze\.sales here has another one"):
            plan_adoption(lake, a_pipeline())

    def test_where_the_tables_did_not_come_along(self, moved):
        shutil.rmtree(moved.table_path("bronze.sales"))
        with pytest.raises(CheckpointError, match="has finished batch 1, but bronze"):
            plan_adoption(moved, an_ingest())

    def test_where_there_is_no_checkpoint(self, tmp_path):
        with pytest.raises(MissingTableError, match="there is nothing to adopt"):
            plan_adoption(a_lake(tmp_path / "lake"), an_ingest())


def test_the_command_says_what_it_does_and_changes_nothing_when_dry(moved, tmp_path):
    epoch, file = open_epoch(moved, an_ingest()), lakes.a_file(tmp_path, an_ingest())
    said = []
    for arguments in (["--dry-run"], [], []):
        found = CliRunner().invoke(app, ["adopt", file, "--lake", moved.uri, *arguments], catch_exceptions=False)
        assert found.exit_code == 0
        said.append(" ".join(found.output.split()))
        assert names_of(moved, epoch, 1)[0].startswith(f"file://{moved.uri}/") == (not arguments)
    assert "3 files that were read below" in said[0]
    assert "Nothing was written: --dry-run." in said[0]
    assert "are taken for those below" in said[1]
    assert f"ingest_sales: its checkpoint fits {moved.uri}." in said[2]


def test_without_names_all_that_have_a_checkpoint_are_adopted(tmp_path):
    old = a_lake(tmp_path / "old/lake")
    unregistered = an_ingest(name="from_a_file", sink=Sink("bronze.from_a_file"))
    checkpointed(old, unregistered, [f"{old.uri}/landing/sales/1.json"])
    shutil.move(old.uri, tmp_path / "new")
    for said in ("from_a_file: 1 files that were read below", "from_a_file: its checkpoint fits"):
        ran = CliRunner().invoke(app, ["adopt", "--lake", str(tmp_path / "new")])
        assert ran.exit_code == 0, ran.output
        assert said in " ".join(ran.output.split())


def test_of_all_that_have_run_the_registered_definition_counts(moved):
    now = an_ingest(description="sales")
    assert that_have_run(moved, [now, a_pipeline()]) == Ran((now,))
    assert that_have_run(moved, []) == Ran((an_ingest(),))


def test_all_that_have_run_are_refused_where_one_cannot_be_read(moved, monkeypatch):
    epoch = current_epoch(moved, "ingest_sales")
    other = epoch.model_copy(update={"definition": epoch.definition.replace('"ingest"', '"of a later version"')})
    monkeypatch.setattr("spark_jobs.lake.checkpoints.ran.current_epochs", lambda _: {"ingest_sales": other})
    with pytest.raises(CheckpointError, match=r"`ingest_sales`.*not registered.*Nothing was changed.*path of a file"):
        that_have_run(moved, []).all_or_none()
