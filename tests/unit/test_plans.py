"""What each registered pipeline means, as a person reads it: one golden file each, in `tests/unit/plans`.

After a change that is meant, `python -m tests.unit.test_plans` writes them again; read what has changed.
"""

from pathlib import Path

import pytest

from spark_jobs.pipelines import registry
from spark_jobs.plan.describe import describe
from spark_jobs.plan.logical import build

GOLDEN = Path(__file__).parent / "plans"


@pytest.mark.parametrize("name", registry())
def test_a_plan_says_what_it_said(name):
    assert describe(build(registry()[name])) == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_is_a_pipelines():
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(registry())


def write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, definition in registry().items():
        (GOLDEN / f"{name}.txt").write_text(describe(build(definition)))


if __name__ == "__main__":
    write()
