"""What an audit has found, as a person reads it."""

from collections.abc import Iterator

from spark_jobs.operations.audit.plan import Audit


def audit_text(audit: Audit) -> str:
    """What an audit has found, in lines."""
    return "\n".join(_lines(audit))


def _lines(audit: Audit) -> Iterator[str]:
    yield f"audit of {audit.pipeline}: {'sound' if audit.sound else 'NOT SOUND'}"
    for holds, said in audit.checks:
        yield f"  {'ok   ' if holds else 'WRONG'} {said}"
    for said in audit.missing:
        yield f"  WRONG {said}"
    if audit.recounted is not None:
        rows = "1 row" if audit.rows == 1 else f"{audit.rows:,} rows"
        wrong = f"{audit.differing:,} wrong in {audit.table}" if audit.differing else "each as its events say"
        mark = "WRONG" if audit.differing else "ok   "
        yield f"  {mark} recounted from bronze, {audit.recounted} UTC: {rows}, {wrong}"
    elif audit.left_out is not None:
        yield f"  {'WRONG' if audit.refused else '-    '} rows were not recounted: {audit.left_out}"
    for said in audit.not_compared:
        yield f"  -     not compared: {said}"
    for problem in audit.problems:
        yield f"        {problem.row}: {problem.what}"
    if audit.differing > len(audit.problems):
        yield f"        and {audit.differing - len(audit.problems):,} more"
    if audit.remedy is not None:
        yield f"  next: {audit.remedy}"


def summary(audit: Audit) -> str:
    """What is wrong, and what to run next."""
    wrong = [said for holds, said in audit.checks if not holds]
    wrong += [*audit.missing, *(f"{each.row}: {each.what}" for each in audit.problems[:3])]
    if audit.refused:
        wrong.append(f"rows were not recounted: {audit.left_out}")
    if audit.differing > 3:
        wrong.append(f"{audit.differing - 3:,} more rows")
    following = f". Next: {audit.remedy}" if audit.remedy else ""
    return f"{audit.pipeline} is not sound: {'; '.join(wrong)}{following}"
