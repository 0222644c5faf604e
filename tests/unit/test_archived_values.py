"""What a lake keeps beside its tables: an example of each form, written when it had that form, is read as it was meant.

The examples are in `tests/archive/values`, with every field set. One is never changed: what no longer fits it needs a
new form (`spark_jobs/lake/store/formats.py`), which is kept beside it, as `<class>-2.json`.
"""

from importlib import import_module
from json import loads
from pathlib import Path
from pkgutil import walk_packages

import pytest

import spark_jobs.control
import spark_jobs.lake
from spark_jobs.lake.store.formats import PersistedValue

VALUES = Path(__file__).parents[1] / "archive/values"


def kept() -> dict[str, type[PersistedValue]]:
    """Everything that outlives its process, by name."""
    for package in (spark_jobs.lake, spark_jobs.control):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return {each.__name__.strip("_"): each for each in PersistedValue.__subclasses__()}


KEPT = kept()


@pytest.mark.parametrize("file", sorted(VALUES.glob("*.json")), ids=lambda file: file.stem)
def test_what_was_written_is_read_as_it_was_meant(file):
    written = loads(file.read_text())
    found = KEPT[file.stem.split("-")[0]].model_validate(written)
    assert as_far_as(written, loads(found.model_dump_json())) == written


def as_far_as(written, again):
    """What was written has, whatever fields there are by now."""
    if isinstance(written, dict) and isinstance(again, dict):
        return {name: as_far_as(written[name], value) for name, value in again.items() if name in written}
    if isinstance(written, list) and isinstance(again, list) and len(written) == len(again):
        return [as_far_as(*both) for both in zip(written, again, strict=True)]
    return again


def test_each_form_has_an_example_with_every_field():
    for name, model in KEPT.items():
        forms = {
            loads(file.read_text())["format"]: file
            for file in VALUES.glob(f"{name}*.json")
            if file.stem.split("-")[0] == name
        }
        assert max(forms, default=0) == model.FORMAT, name
        assert loads(forms[model.FORMAT].read_text()).keys() >= {
            field for field in model.model_fields if model.model_fields[field].is_required()
        }, name
