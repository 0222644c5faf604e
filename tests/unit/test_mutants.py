"""The faults of tests/mutants: each can be made, and the tests that are to find it are there."""

import ast
import subprocess
from functools import cache

import pytest

from tests.mutants.__main__ import REPOSITORY, Mutant, mutants

ALL = mutants()
every_mutant = pytest.mark.parametrize("mutant", ALL, ids=[each.name for each in ALL])


def test_there_are_forty() -> None:
    assert len(ALL) == 40


@every_mutant
def test_it_can_be_made(mutant: Mutant) -> None:
    command = ["git", "apply", "--check", str(mutant.patch)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert mutant.what.endswith(".")


@every_mutant
def test_the_tests_that_find_it_are_there_and_run_at_every_make_test(mutant: Mutant) -> None:
    for test in mutant.found_by:
        file, *names = test.partition("[")[0].split("::")
        assert file.startswith("tests/")
        marks, found = "", list(_parsed(file).body)
        for name in names:
            held = [each for each in found if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name]
            assert len(held) == 1, f"{test}: no {name} in {file}"
            marks += "".join(ast.unparse(each) for each in held[0].decorator_list if _is_mark(each))
            found = list(held[0].body)
        assert not {"long", "outside_data"} & set(marks.split(".")), test


def _is_mark(decorator: ast.expr) -> bool:
    """`pytest.mark.long` and the like; of those with arguments only some of the runs may be so."""
    return isinstance(decorator, ast.Attribute)


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((REPOSITORY / file).read_text())
