"""Where the rules of other engines are not Tidemark's, on purpose: which, and why."""

from collections.abc import Mapping

BUILT = ("tumbling", "hopping", "session")
"""The kinds of window that cases can be run on."""

DIFFERENCES: Mapping[str, tuple[frozenset[str], frozenset[str], str]] = {
    # name: engines, kinds, why
    "watermark names the last instant": (
        frozenset({"flink"}),
        frozenset(BUILT),
        "Flink's watermark w says that nothing at or before w will come, and closes a window at end - 1. Tidemark's "
        "W says that nothing before W will come, and closes it at end: w is fed as W = w + 1.",
    ),
    "end of a session": (
        frozenset({"kafka", "pathway", "quix"}),
        frozenset({"session"}),
        "They name the last event as the end of a session, inclusive; Tidemark, as Spark and Flink, last event + gap, "
        "exclusive: the same session.",
    ),
    "no window before zero": (
        frozenset({"kafka", "quix"}),
        frozenset({"hopping"}),
        "They have no window that starts before time 0; for Tidemark 1970 is an instant as any other.",
    ),
    "session open at equality": (
        frozenset({"kafka", "quix"}),
        frozenset({"session"}),
        "They close a session when last + gap + grace < stream time. Tidemark closes every window by one rule, "
        "end <= W, so one unit earlier.",
    ),
    "session judged after merging": (
        frozenset({"beam", "flink", "kafka", "quix"}),
        frozenset({"session"}),
        "They let an event that is late by itself join a session that is still open. Tidemark judges each event by "
        "itself, so that the verdict does not depend on what else is in the state.",
    ),
    "closed session joined again": (
        frozenset({"kafka"}),
        frozenset({"session"}),
        "Kafka keeps closed sessions until retention ends, and an event in time may join one. Tidemark's closed "
        "windows are final.",
    ),
    "apart at distance gap": (
        frozenset({"beam"}),
        frozenset({"session"}),
        "Beam's sessions merge only when they overlap; Tidemark's, as Spark's, also when they touch.",
    ),
    "watermark by key": (
        frozenset({"quix"}),
        frozenset(BUILT),
        "Quix has a stream time for each key. Tidemark's watermark is one for the whole stream: a silent key must not "
        "keep its windows open for ever.",
    ),
    "fires before it is final": (
        frozenset({"beam", "flink"}),
        frozenset(BUILT),
        "With allowed lateness they emit a window when the watermark passes its end, and again with each late event. "
        "Tidemark's row is final when grace is over too: it equals the last firing, or all of them together where "
        "they discard what was fired.",
    ),
    # Kafka and quix also judge a record by a stream time that includes the record itself: no window can tell, since
    # none that holds an event ends at or before it.
}
# Facts of how a case is written, not rules that decide: applied wherever the case calls for them.
AS_WRITTEN = ("watermark names the last instant", "end of a session", "no window before zero")
