"""`make chaos OF=pipelines` leaves none out, and gives each of them something to lose."""

from pathlib import Path

from spark_jobs.pipelines import registry
from spark_jobs.spec import Files, Ingest, Pipeline
from tests.chaos import each_pipeline, registered


def test_each_registered_pipeline_runs_in_a_group() -> None:
    running = {each.name for group in each_pipeline.GROUPS for each in each_pipeline.work_of(group).readers}
    assert running == {name for name, each in registry().items() if isinstance(each, Pipeline)}


def test_only_the_pace_of_registered_pipelines_is_another() -> None:
    for name, mine in registered.DEFINITIONS.items():
        theirs = registry()[name]
        changed = {field for field in type(theirs).model_fields if getattr(mine, field) != getattr(theirs, field)}
        assert changed <= {"source", "steps", "trigger_interval"}, name
        assert mine.sink == theirs.sink


def test_each_ingest_has_as_many_files_as_another(tmp_path: Path) -> None:
    each_pipeline.simulate(tmp_path, files=3, rows=3_400)
    read = {
        each.source.path for each in registry().values() if isinstance(each, Ingest) and isinstance(each.source, Files)
    }
    for path in read:
        files = sorted((tmp_path / Path(path).name).iterdir())
        assert [each.name for each in files] == ["0.json", "1.json", "2.json"]
        assert all(each.read_bytes().count(b"\n") > 1 for each in files), path
