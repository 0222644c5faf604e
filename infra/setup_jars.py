"""Fetch the jars that Spark loads beside its own, and compile the classes of ``infra/java``.

Every jar is named by an exact coordinate with its SHA-256; nothing is resolved transitively and nothing is
looked up when Spark starts. Apache Ivy, which downloads them, ships with PySpark. When all is in place a run
takes milliseconds: a stamp holds the hash of the lists and of the Java sources.

Run as ``python -m infra.setup_jars`` (``--kafka`` fetches the broker of the service tests, too).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
"""The checkout that this file belongs to."""

SUPPORTED_JAVA = (17, 21)
STORAGE_JAR = "tidemark-storage.jar"

_AT_ONCE = 3
_AGAIN = "Run `python -m infra.setup_jars` again."
_REPEATED = "If that ends the same way, the list or the registry is wrong: do not use the jar."
_COORDINATE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+)\s+([0-9a-f]{64})")
_COMPILE_AGAINST = (
    "delta-",
    "hadoop-aws",
    "hadoop-client-api",
    "hadoop-client-runtime",
    "aws-core",
    "s3-2",
    "sdk-core",
    "utils-2",
    "scala-library",
    "slf4j-api",
    "spark-",
    "jackson-",
    "json4s-",
    "kryo-shaded",
)


class SetupError(Exception):
    """The set-up cannot go on; the message says what was expected, what was found and what to run."""


@dataclass(frozen=True)
class Jar:
    """One line of a jar list.

    Attributes:
        group: Maven group.
        artifact: Maven artifact.
        version: Exact version.
        sha256: Checksum of the file, in lower-case hex.
    """

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        """The Maven coordinate, ``group:artifact:version``."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """The name under which the jar lies in its folder."""
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class JarSet:
    """A committed jar list and the folder that holds exactly its jars.

    Attributes:
        listing: The list, one ``coordinate  sha256`` per line.
        folder: Where the jars go; other jars in there are removed.
    """

    listing: Path
    folder: Path


@dataclass(frozen=True)
class Layout:
    """Where things lie in a checkout.

    Attributes:
        root: The checkout.
    """

    root: Path

    @property
    def cache(self) -> Path:
        """The folder of everything that can be fetched or built again."""
        return self.root / ".cache"

    @property
    def runtime(self) -> JarSet:
        """What goes on Spark's class path."""
        return JarSet(self.root / "infra/jars.txt", self.cache / "jars")

    @property
    def tools(self) -> JarSet:
        """What the set-up itself needs."""
        return JarSet(self.root / "infra/tools-jars.txt", self.cache / "tools")

    @property
    def kafka(self) -> JarSet:
        """The broker of the service tests."""
        return JarSet(self.root / "infra/kafka-jars.txt", self.cache / "kafka")

    @property
    def java_sources(self) -> list[Path]:
        """The sources of our classes, in a stable order."""
        return sorted((self.root / "infra/java").rglob("*.java"))

    @property
    def storage_jar(self) -> Path:
        """Our classes, compiled."""
        return self.runtime.folder / STORAGE_JAR


def parse_listing(text: str, origin: str) -> tuple[Jar, ...]:
    """Read a jar list; ``#`` starts a comment line.

    Args:
        text: Content of the list.
        origin: Name of the list, for messages.

    Returns:
        The jars in the order of the list.

    Raises:
        SetupError: If a line is not ``group:artifact:version  sha256``, or two lines would share a file name.
    """
    jars: dict[str, Jar] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _COORDINATE.fullmatch(line.strip())
        if match is None:
            raise SetupError(f"{origin}:{number}: expected `group:artifact:version  sha256`, got {line!r}.")
        jar = Jar(*match.groups())
        if jar.file_name in jars:
            raise SetupError(f"{origin}:{number}: {jar.file_name} is listed twice; remove one of the lines.")
        jars[jar.file_name] = jar
    return tuple(jars.values())


def find_java() -> Path:
    """Find a Java that Spark runs on: ``JAVA_HOME`` first, then ``PATH``.

    Returns:
        The ``java`` program.

    Raises:
        SetupError: If there is none, or its version is not supported.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin/java")) if home else shutil.which("java")
    wanted = " or ".join(map(str, SUPPORTED_JAVA))
    where = f"JAVA_HOME={home}" if home else "PATH"
    install = (
        "Install it with `sudo apt-get install openjdk-17-jre-headless` (macOS: `brew install openjdk@17`)"
        ", or point JAVA_HOME at one."
    )
    if found is None or not Path(found).is_file():
        raise SetupError(f"java: expected Java {wanted}, found none in {where}. {install}")
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', shown)
    if version is None or int(version[1]) not in SUPPORTED_JAVA:
        got = shown.strip().splitlines()[0] if shown.strip() else "no answer"
        raise SetupError(f"java: expected Java {wanted}, got {got} from {found} ({where}). {install}")
    return Path(found)


def pyspark_jars() -> Path:
    """Return PySpark's own jar folder, without importing PySpark.

    Raises:
        SetupError: If PySpark is not installed in this environment.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("pyspark: not installed in this environment. Run `pip install -r requirements.txt`.")
    return Path(spec.submodule_search_locations[0], "jars")


def fetch(jars: JarSet, java: Path, cache: Path) -> None:
    """Make a folder hold exactly the jars of its list, each with the listed checksum.

    Args:
        jars: List and folder.
        java: The Java to run Ivy with.
        cache: Folder for Ivy's own files.

    Raises:
        SetupError: If a jar could not be downloaded or has another checksum than listed. What lay there with
            the right checksum stays; a wrong file is removed.
    """
    wanted = parse_listing(jars.listing.read_text(encoding="utf-8"), jars.listing.name)
    jars.folder.mkdir(parents=True, exist_ok=True)
    keep = {jar.file_name for jar in wanted} | {STORAGE_JAR}
    for stale in jars.folder.glob("*.jar"):
        if stale.name not in keep:
            stale.unlink()
    _verify([jar for jar in wanted if (jars.folder / jar.file_name).exists()], jars.folder)
    missing = [jar for jar in wanted if not (jars.folder / jar.file_name).exists()]
    if not missing:
        return
    print(f"{jars.listing.name}: fetching {len(missing)} of {len(wanted)} jars")
    # Downloads are checked in a folder of their own: what lies in the final folder is whole and right.
    with tempfile.TemporaryDirectory(dir=cache, prefix="ivy-") as scratch:
        incoming = Path(scratch, "incoming")
        incoming.mkdir()
        # One Ivy asks for one jar after the other; what it waits for is the registry's answers.
        shares = [missing[start::_AT_ONCE] for start in range(min(_AT_ONCE, len(missing)))]
        places = [Path(scratch, str(number)) for number in range(len(shares))]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda share, place: _retrieve(share, incoming, java, place), shares, places))
        _verify(missing, incoming)
        for jar in missing:
            os.replace(incoming / jar.file_name, jars.folder / jar.file_name)


def compile_storage(layout: Layout, java: Path) -> None:
    """Compile ``infra/java`` into the storage jar with Eclipse's compiler, which needs no JDK.

    Args:
        layout: The checkout; runtime jars and tools must have been fetched.
        java: The Java to run the compiler with.

    Raises:
        SetupError: If a class does not compile; the jar of an earlier run is removed then.
    """
    layout.storage_jar.unlink(missing_ok=True)
    sources = layout.java_sources
    if not sources:
        return
    libraries = [*pyspark_jars().glob("*.jar"), *layout.runtime.folder.glob("*.jar")]
    with tempfile.TemporaryDirectory(dir=layout.cache, prefix="classes-") as scratch:
        compile_java(
            sources,
            Path(scratch),
            class_path=[jar for jar in libraries if jar.name.startswith(_COMPILE_AGAINST)],
            java=java,
            compiler=next(layout.tools.folder.glob("ecj-*.jar")),
        )
        partial = layout.storage_jar.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as jar:
            for compiled in sorted(Path(scratch).rglob("*.class")):
                # A fixed date: the same sources give the same jar.
                entry = zipfile.ZipInfo(compiled.relative_to(scratch).as_posix(), (2020, 1, 1, 0, 0, 0))
                jar.writestr(entry, compiled.read_bytes(), zipfile.ZIP_DEFLATED)
        os.replace(partial, layout.storage_jar)


def compile_java(
    sources: Sequence[Path], into: Path, *, class_path: Sequence[Path], java: Path, compiler: Path
) -> None:
    """Compile Java 17 sources with Eclipse's compiler.

    Args:
        sources: Source files.
        into: Folder for the class files.
        class_path: Jars that the sources refer to.
        java: The Java to run the compiler with.
        compiler: The compiler's jar.

    Raises:
        SetupError: If a source does not compile.
    """
    options = ["-source", "17", "-target", "17", "-encoding", "UTF-8", "-g", "-proc:none", "-nowarn"]
    libraries = os.pathsep.join(map(str, class_path))
    command = [str(java), "-jar", str(compiler), *options, "-cp", libraries, "-d", str(into)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"java sources: expected them to compile, got:\n{done.stdout}{done.stderr}")


def run(layout: Layout, *, with_kafka: bool = False) -> None:
    """Bring jars and classes up to date; does nothing where they already are.

    Args:
        layout: The checkout.
        with_kafka: Whether the broker of the service tests is wanted, too.

    Raises:
        SetupError: If Java is missing, a download fails, a checksum differs or a source does not compile.
    """
    java = find_java()
    layout.cache.mkdir(exist_ok=True)
    with _alone(layout.cache / "setup_jars.lock"):
        if not _is_current(layout, layout.runtime, layout.tools, layout.java_sources):
            fetch(layout.tools, java, layout.cache)
            fetch(layout.runtime, java, layout.cache)
            compile_storage(layout, java)
            _stamp(layout.runtime).write_text(_digest(layout.runtime, layout.tools, layout.java_sources))
        if with_kafka and not _is_current(layout, layout.kafka):
            fetch(layout.kafka, java, layout.cache)
            _stamp(layout.kafka).write_text(_digest(layout.kafka))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the set-up; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.setup_jars", description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", action="store_true", help="fetch the Kafka broker of the tests, too")
    try:
        run(Layout(REPOSITORY), with_kafka=parser.parse_args(arguments).kafka)
    except SetupError as error:
        print(f"setup_jars: {error}", file=sys.stderr)
        return 1
    return 0


def ivy_file(jars: Sequence[Jar]) -> str:
    """Return the Ivy module that asks for these jars and none of their dependencies."""
    conf = "default->master"
    lines = [
        f'    <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" conf="{conf}"/>' for jar in jars
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="tidemark" module="jars"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>\n",
        ]
    )


def _retrieve(jars: Sequence[Jar], into: Path, java: Path, scratch: Path) -> None:
    scratch.mkdir()
    module = scratch / "ivy.xml"
    module.write_text(ivy_file(jars), encoding="utf-8")
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    pattern = f"{into}/[artifact]-[revision].[ext]"
    # Ivy's cache is as short-lived as the run: a bad download must not come back from it.
    places = ["-ivy", str(module), "-cache", str(scratch / "cache"), "-retrieve", pattern]
    done = subprocess.run(
        [str(java), "-cp", str(ivy), "org.apache.ivy.Main", *places],
        capture_output=True,
        text=True,
        check=False,
    )
    absent = [jar.coordinate for jar in jars if not (into / jar.file_name).is_file()]
    if done.returncode != 0 or absent:
        told = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.strip()]
        raise SetupError(
            f"download: expected {len(jars)} jars, {len(absent)} did not arrive: {', '.join(absent) or '-'}. "
            f"Ivy ended with {done.returncode}. Nothing was added. {_AGAIN} Ivy's last words:\n" + "\n".join(told[-15:])
        )


def _verify(jars: Sequence[Jar], folder: Path) -> None:
    wrong: list[str] = []
    for jar in jars:
        path = folder / jar.file_name
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        if got != jar.sha256:
            path.unlink()
            wrong.append(f"{jar.coordinate}: expected sha256 {jar.sha256}, got {got}")
    if wrong:
        raise SetupError("\n".join([*wrong, f"The wrong files were removed. {_AGAIN} {_REPEATED}"]))


def _digest(*parts: JarSet | list[Path]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        for path in [part.listing] if isinstance(part, JarSet) else part:
            digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _stamp(jars: JarSet) -> Path:
    return jars.folder / "stamp"


def _is_current(layout: Layout, *parts: JarSet | list[Path]) -> bool:
    sets = [part for part in parts if isinstance(part, JarSet)]
    stamp = _stamp(sets[0])
    if not stamp.is_file() or stamp.read_text() != _digest(*parts):
        return False
    expected = [
        jars.folder / jar.file_name
        for jars in sets
        for jar in parse_listing(jars.listing.read_text(encoding="utf-8"), jars.listing.name)
    ]
    if any(isinstance(part, list) and part for part in parts):
        expected.append(layout.storage_jar)
    return all(path.is_file() for path in expected)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock between processes: two set-ups at once would compile into one jar."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
