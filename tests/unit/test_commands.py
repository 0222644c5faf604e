"""Commands that texts suggest can be pasted as they are."""

import ast
import shlex

from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.commands import command, typed_arguments, typed_lake
from tests.support.builders import a_lake, a_pipeline
from tests.support.process import REPOSITORY

FILE = """
from tidemark import Pipeline, Sink, Table, Where

mine = Pipeline(
    name="mine",
    source=Table("bronze.sales"),
    event_time="sold_at",
    steps=(Where("quantity > 1"),),
    sink=Sink("gold.mine"),
)
"""


def test_a_command_names_the_lake_and_the_file_as_they_were_typed():
    typed_lake("a lake")
    typed_arguments({"mine": "my files/mine.py:mine"})
    assert command("reset", "mine", "--empty-tables") == (
        "tidemark reset 'my files/mine.py:mine' --empty-tables --lake 'a lake'"
    )
    assert command("stop", "mine") == "tidemark stop mine --lake 'a lake'"
    assert command("status") == "tidemark status --lake 'a lake'"
    typed_lake(None)
    assert command("run", "mine") == "tidemark run mine"


def test_what_an_error_suggests_can_be_pasted(tmp_path):
    file, lake = tmp_path / "mine.py", a_lake(tmp_path / "its lake")
    file.write_text(FILE)
    error = CliRunner().invoke(app, ["ledger", str(file), "--lake", lake.uri]).exception
    suggested = shlex.split(str(error).partition("Start it: ")[2])
    assert suggested == ["tidemark", "run", f"{file}:mine", "--lake", lake.uri]


def test_a_lake_that_nobody_typed_is_not_suggested(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_LAKE", str(tmp_path))
    begin_epoch(a_lake(tmp_path), a_pipeline(name="top_products"), 1)
    error = CliRunner().invoke(app, ["audit", "top_products"]).exception
    assert "--lake" not in str(error)


# They tell of `tidemark` in general, or are for who has not typed anything yet.
SPOKEN_OF = {
    "spark_jobs/__main__.py",
    "spark_jobs/console/demo.py",
    "spark_jobs/console/laptop/commands.py",
    "spark_jobs/documentation/pages.py",
    "spark_jobs/lake/commands.py",
    "spark_jobs/lake/location.py",
}


def told(path):
    """The texts of a module that are not its documentation."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


VERBS = ("run", "reset", "deploy", "backfill", "repair", "audit", "ledger", "sql", "rebuild")


def test_each_suggested_command_is_made_by_the_one_function():
    found = {
        (str(path.relative_to(REPOSITORY)), verb)
        for path in (REPOSITORY / "spark_jobs").rglob("*.py")
        for text in told(path)
        for verb in VERBS
        if f"tidemark {verb}" in text
    }
    assert {(path, verb) for path, verb in found if path not in SPOKEN_OF and path != "spark_jobs/cli"} == set()
