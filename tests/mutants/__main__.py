"""The command line behind `make mutants`: makes one fault after the other, and asks its tests whether they fail.

It works in a copy, `.cache/mutants/tree`. First all tests that are named run there once without a fault, and must pass.
What became of each fault is also appended to `.cache/mutants/results.jsonl`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

PATCHES = Path(__file__).parent
REPOSITORY = PATCHES.parents[1]
NOTHING = "nothing yet"
"""What a patch is found by that no test would notice."""

_SHARED = (".venv", *(f".cache/{name}" for name in ("jars", "kafka", "bin", "tools")))
"""What the copy does not have of its own."""
_LONGEST_S = 600.0
"""Tests that take longer have found the fault, too: they hang."""


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: of its patch.
        what: it is, as its user would meet it.
        found_by: pytest's ids of the tests that should fail; empty: no test would.
        patch: the file.
    """

    name: str
    what: str
    found_by: tuple[str, ...]
    patch: Path

    @classmethod
    def read(cls, patch: Path) -> Mutant:
        """A patch with its header."""
        header = patch.read_text().partition("diff --git")[0]
        said = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
        tests = said["Found by"]
        return cls(patch.stem, said["What"], () if tests == NOTHING else tuple(tests.split()), patch)

    @property
    def is_unit(self) -> bool:
        """Whether all of its tests need no JVM."""
        return bool(self.found_by) and all(test.startswith("tests/unit/") for test in self.found_by)


def mutants() -> list[Mutant]:
    """All of them, by name."""
    return [Mutant.read(patch) for patch in sorted(PATCHES.glob("*.patch"))]


@dataclass(frozen=True)
class Result:
    """What became of a fault, in how many seconds, and what else there is to say."""

    name: str
    verdict: Literal["found", "NOT FOUND", "ERROR"]
    seconds: float = 0.0
    why: str = ""


class Tree:
    """A copy of a checkout.

    Args:
        root: the checkout; what its git ignores is left out.
        folder: of the copy, which is made anew.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        listed = ("git", "ls-files", "-co", "--exclude-standard", "-z")
        names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in filter(None, names):
            if (root / name).is_file():  # else it was deleted and that is not committed
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        (folder / ".cache").mkdir()
        for name in _SHARED:
            if (REPOSITORY / name).exists():
                (folder / name).symlink_to(REPOSITORY / name)
        # No compiled module may outlive the fault that it was made with.
        self._environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        # Else git would look for the paths of a patch in the repository that the copy lies in.
        self._environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)

    def apply(self, patch: Path, *options: str) -> str:
        """Applies a patch; why it cannot be, empty where it was."""
        command, place = ("git", "apply", *options, str(patch)), self._folder
        done = subprocess.run(command, cwd=place, env=self._environment, capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    def test(self, tests: Sequence[str], *options: str, longest_s: float | None = None) -> tuple[int | None, str]:
        """pytest's exit code, None where it took too long, and what it said."""
        command = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        command += ["-m", "not long and not outside_data", *tests]
        out, place = subprocess.PIPE, self._folder
        with subprocess.Popen(
            command, cwd=place, env=self._environment, stdout=out, stderr=subprocess.STDOUT, text=True, process_group=0
        ) as process:
            try:
                said, _ = process.communicate(timeout=longest_s)
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                # Whatever it has started, such as a JVM, goes with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, said


def failing_unchanged(tree: Tree, chosen: Sequence[Mutant]) -> list[str]:
    """What the tests of these say that do not pass without any fault."""
    failing: list[str] = []
    tests = sorted({test for mutant in chosen for test in mutant.found_by})
    for kind in sorted({test.split("/")[1] for test in tests}):
        code, said = tree.test([test for test in tests if test.split("/")[1] == kind])
        if code != 0:
            told = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR"))]
            failing += told or [f"pytest ended with {code}: {said[-500:]}"]
    return failing


def try_out(tree: Tree, mutant: Mutant) -> Result:
    """Makes a fault, asks its tests, and takes it back."""
    if not mutant.found_by:
        return Result(mutant.name, "NOT FOUND", why="it names no test that would")
    if refused := tree.apply(mutant.patch):
        return Result(mutant.name, "ERROR", why=f"{mutant.patch} does not apply: {refused}")
    began = time.monotonic()
    code, said = tree.test(mutant.found_by, "-x", longest_s=_LONGEST_S)
    seconds = round(time.monotonic() - began, 1)
    if refused := tree.apply(mutant.patch, "--reverse"):
        raise RuntimeError(f"{mutant.patch} cannot be taken back: {refused}")
    if code is None:
        return Result(mutant.name, "found", seconds, f"its tests hang for {_LONGEST_S:.0f} s")
    if code in (0, 1):
        return Result(mutant.name, "found" if code else "NOT FOUND", seconds)
    return Result(mutant.name, "ERROR", seconds, f"pytest ended with {code}: {' '.join(said.splitlines()[-3:])}")


def main() -> int:
    """Tries the mutants; 0 if all were found, 2 if there is nothing to find them with."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; all by default")
    parser.add_argument("--only-unit", action="store_true", help="only those whose tests need no JVM")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="another checkout, whose code and tests to try")
    options = parser.parse_args()
    known = mutants()
    if unknown := set(options.names) - {each.name for each in known}:
        parser.error(f"expected names of patches in {PATCHES}, got {', '.join(sorted(unknown))}")
    chosen = [each for each in known if not options.names or each.name in options.names]
    chosen = [each for each in chosen if each.is_unit or not options.only_unit]
    kept, root = REPOSITORY / ".cache" / "mutants", options.root.absolute()
    tree = Tree(root, kept / "tree")
    print("their tests, without a fault …", flush=True)
    if failing := failing_unchanged(tree, chosen):
        print("these do not pass without a fault, so that they would tell nothing of one:", *failing, sep="\n")
        return 2
    found = 0
    for mutant in chosen:
        result = try_out(tree, mutant)
        found += result.verdict == "found"
        why = f" ({result.why})" if result.why else ""
        print(f"{result.verdict:9}  {result.seconds:5.1f} s  {mutant.name}: {mutant.what}{why}", flush=True)
        with (kept / "results.jsonl").open("a") as file:
            row = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "root": str(root), **asdict(result)}
            file.write(json.dumps(row) + "\n")
    print(f"{found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
