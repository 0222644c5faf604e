"""Window cases of other engines, run through Tidemark: `python -m tests.cases FILE`.

Each case is fed as its source fed it: event by event, or batch by batch, and each time the query is awaited. What
Tidemark writes must be what its own rules say (`tests/support/model.py`), and what its rules say must be what the case
expects; where another engine has other rules, `DIFFERENCES` names and explains each, and the case must then follow
from Tidemark's rules with nothing but differences of its engine applied.

A case with `asserts: "late_only"` judges only which events are late; windows or rows in `unasserted` are not judged.
What a case says in words that are not known here fails it.

Event times are shifted by whole hops to a time well after 1970, where Spark's watermark begins.
"""
