"""What plans and reports of several operations say in the same words."""

from collections.abc import Iterator, Sequence

from spark_jobs.recompute.target import SourceVersion

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def reads_text(reads: Sequence[SourceVersion]) -> Iterator[str]:
    """What is read, a line for each table."""
    for read in reads:
        rows = "an unknown number of rows" if read.rows is None else counted(read.rows, "row")
        yield f"reads    {read.table}, version {read.version}: at most {rows}, {sized(read.bytes)}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sized(size: float) -> str:
    """A number of bytes, in a unit that suits it."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError
