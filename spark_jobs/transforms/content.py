"""A digest of rows in any order, taken in the pass that counts them: a batch that is tried again must give it."""

import hashlib
from collections.abc import Iterable

from spark_jobs.spark.observed_rows import Figure

BY_IDENTITY = "identity"
"""The form of a digest of result rows; one without a form, of an earlier version, is of the ids of events."""

_LOW_BITS = 0xFFFFFFFF


def digest_sql(row_hash: str, *, prefix: str = "content") -> tuple[str, str]:
    """Two aggregates that together tell sets of rows apart: `<prefix>_xor` and `<prefix>_sum`.

    Rows that come twice cancel each other in the one and add up in the other, which holds two thousand million rows.

    Args:
        row_hash: SQL of a 64-bit hash of each row; rows where it is null are left out.
        prefix: of the names.
    """
    return f"bit_xor({row_hash}) AS {prefix}_xor", f"sum({row_hash} & {_LOW_BITS}L) AS {prefix}_sum"


def digest_figures(row_hash: str, *, prefix: str) -> tuple[Figure, Figure]:
    """The two of `digest_sql`, as figures.

    Args:
        row_hash: as there.
        prefix: of the names.
    """
    return Figure(f"{prefix}_xor", row_hash, mixed=True), Figure(f"{prefix}_sum", f"{row_hash} & {_LOW_BITS}L")


def digest(parts: Iterable[tuple[object, ...]], *, form: str | None = None) -> str | None:
    """One short text for the figures of a batch's groups; None where there are no rows.

    Args:
        parts: one tuple for each kind of rows, such as (reason, xor, sum).
        form: what the rows are told apart by, where that has changed; digests of two forms are never compared.
    """
    found = sorted(repr(part) for part in parts)
    if not found:
        return None
    text = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
    return f"{form}:{text}" if form else text
