"""What an import linter cannot see: who may know of windows, steps, sources, side tables, Spark; who opens tables and
lists folders; who decides whether an operation may be executed.

Run by `make lint`. Each rule names the folders that may do what it forbids elsewhere.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from spark_jobs.spec import Ingest, steps, windows
from spark_jobs.spec.base import Spec

_ROOT = Path(__file__).parents[1]


def kinds_of(module: object) -> frozenset[str]:
    """The classes of specs that a module defines or passes on."""
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Spec))
    return frozenset(each.__name__ for each in found if "kind" in each.model_fields)


KINDS = kinds_of(windows) | kinds_of(steps)
"""Windows and steps: what one of them means is asked of the plan."""

SOURCES = frozenset(each.__name__ for each in get_args(Ingest.model_fields["source"].annotation))
"""Sources of an ingest: what differs between them is asked of the value, or of `engine.sources`."""

SUFFIXES = ("__late", "__groups", "__quarantine", "__rebuilt")
INTERNALS = frozenset({"_jdf", "_jsq", "_jvm", "_jsparkSession"})

_KINDS_KNOWN_IN = ("spark_jobs/spec/", "spark_jobs/plan/", "spark_jobs/transforms/", "spark_jobs/pipelines/")
_SOURCES_KNOWN_IN = ("spark_jobs/spec/", "spark_jobs/engine/sources/")
_SUFFIXES_KNOWN_IN = ("spark_jobs/plan/tables.py",)
_INTERNALS_KNOWN_IN = ("spark_jobs/spark/",)
_DECIDES_NOTHING = ("spark_jobs/cli/", "spark_jobs/console/", "dags/")
_FOLDERS_LISTED_IN = ("spark_jobs/lake/store/folders.py",)
_TABLES_OPENED_IN = ("spark_jobs/lake/tables/opening.py", "spark_jobs/lake/tables/appends.py")


def problems(path: str, source: str) -> Iterator[str]:
    """What a file does that is not its business.

    Args:
        path: relative to the project.
        source: of the file.
    """
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if not path.startswith(_KINDS_KNOWN_IN):
            for kind in sorted(_classes_asked_for(node) & KINDS):
                yield f"{path}:{line}: asks whether something is a {kind}: ask its plan (spark_jobs/plan)"
        if not path.startswith(_SOURCES_KNOWN_IN):
            for kind in sorted(_classes_asked_for(node) & SOURCES):
                yield f"{path}:{line}: asks whether a source is {kind}: ask the source (spark_jobs/spec/sources.py)"
            if _compares_a_source(node):
                yield f"{path}:{line}: compares the kind of a source: ask the source (spark_jobs/spec/sources.py)"
        if not path.startswith(_SUFFIXES_KNOWN_IN) and isinstance(node, ast.Constant) and id(node) not in prose:
            for suffix in SUFFIXES:
                if isinstance(node.value, str) and suffix in node.value:
                    yield f"{path}:{line}: names a side table by {suffix!r}: use plan.tables.beside"
        if not path.startswith(_INTERNALS_KNOWN_IN) and isinstance(node, ast.Attribute) and node.attr in INTERNALS:
            yield f"{path}:{line}: reaches for {node.attr}: only spark_jobs/spark may"
        if path.startswith(_DECIDES_NOTHING) and (guard := _imported_guard(node)):
            yield f"{path}:{line}: asks {guard}: a guard belongs to the plan of its operation (operations/)"
        if not path.startswith(_TABLES_OPENED_IN) and _opens_a_table(node):
            yield f"{path}:{line}: opens a table unasked what it needs: use lake.tables.open_table"
        if not path.startswith(_FOLDERS_LISTED_IN) and _lists_a_folder(node):
            yield f"{path}:{line}: takes the mark of a folder for an object: use lake.store.folders.objects_in"


def _classes_asked_for(node: ast.AST) -> set[str]:
    if isinstance(node, ast.MatchClass):
        asked: list[ast.expr] = [node.cls]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        asked = node.args[1:]
    else:
        return set()
    return {name.id for each in asked for name in ast.walk(each) if isinstance(name, ast.Name)}


def _compares_a_source(node: ast.AST) -> bool:
    """`source.kind == "kafka"` and the like."""
    if not isinstance(node, ast.Compare):
        return False
    values = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    sides = (node.left, *node.comparators)
    asks = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
    return asks and not values.isdisjoint({source.lower() for source in SOURCES})


def _imported_guard(node: ast.AST) -> str | None:
    """A guard that a module takes from elsewhere; what it checks of its own options is its own."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_jobs."):
        return next((each.name for each in node.names if each.name.startswith("refuse_")), None)
    return None


def _opens_a_table(node: ast.AST) -> bool:
    """`DeltaTable(…)` of `deltalake`; Spark's has no such constructor, and knows every feature."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DeltaTable"


def _lists_a_folder(node: ast.AST) -> bool:
    """`store.list_with_delimiter(…)["objects"]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return False
    asked = node.value.func if isinstance(node.value, ast.Call) else None
    return node.slice.value == "objects" and getattr(asked, "attr", "") == "list_with_delimiter"


def main() -> int:
    """Prints every problem of the product's code; 1 where there is one."""
    found: list[str] = []
    for folder in ("spark_jobs", "dags"):
        for file in sorted((_ROOT / folder).rglob("*.py")):
            found += problems(file.relative_to(_ROOT).as_posix(), file.read_text())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
