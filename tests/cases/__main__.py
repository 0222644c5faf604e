"""The command line behind `make cases`."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.spark.session import build_session
from tests.cases.case import read
from tests.cases.differences import DIFFERENCES
from tests.cases.keyed import KEYED, run_keyed_case
from tests.cases.running import run_case


def main(arguments: Sequence[str]) -> int:
    """Runs the cases of a file; one line each."""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        sys.stderr.write(f"expected one file of cases, got {list(arguments)}: make cases FILE=windows.json\n")
        return 2
    passed = failed = 0
    shown: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(Lake(folder).ensure_exists(), settings=Settings(master="local[2]", shuffle_partitions=1))
        for number, case in enumerate(read(Path(arguments[0]))):
            if not case.built and case.kind not in KEYED:
                _say(f"not built: {case.kind}  ({case.id})")
                continue
            try:
                lake = Lake(f"{folder}/{number}").ensure_exists()
                differences = run_case(spark, lake, case) if case.built else run_keyed_case(spark, lake, case.raw)
            except Exception as error:  # noqa: BLE001
                failed += 1
                _say(f"FAILED  {case.id}: {type(error).__name__}: {error}")
                continue
            passed += 1
            shown.update(differences)
            _say(f"passed  {case.id}" + (f"  [differs: {'; '.join(differences)}]" if differences else ""))
        spark.stop()
    for name in DIFFERENCES:
        if name in shown:
            _say(f"differs: {name}: {DIFFERENCES[name][2]}")
    _say(f"{passed} of {passed + failed} passed")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
