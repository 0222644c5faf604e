"""Where the rules of other engines are not Tidemark's, on purpose: which, and why."""

from collections.abc import Mapping

WINDOWS = ("tumbling", "hopping", "session")
"""The kinds of window that cases can be run on."""

BUILT = (*WINDOWS, "dedup", "join")
"""All kinds of case that can be run."""

DIFFERENCES: Mapping[str, tuple[frozenset[str], frozenset[str], str]] = {
    # name: engines, kinds, why
    "watermark names the last instant": (
        frozenset({"flink"}),
        frozenset(WINDOWS),
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
        frozenset(WINDOWS),
        "Quix has a stream time for each key. Tidemark's watermark is one for the whole stream: a silent key must not "
        "keep its windows open for ever.",
    ),
    "fires before it is final": (
        frozenset({"beam", "flink"}),
        frozenset(WINDOWS),
        "With allowed lateness they emit a window when the watermark passes its end, and again with each late event. "
        "Tidemark's row is final when grace is over too: it equals the last firing, or all of them together where "
        "they discard what was fired.",
    ),
    "join without an end": (
        frozenset({"beam", "flink", "kafka", "pathway", "quix", "spark"}),
        frozenset({"join"}),
        "They join without a bound on one side of time, or on both, and keep what could match for ever, or the latest "
        "row of each key. Tidemark refuses a join without `within` or `keep`. Where one side is bounded, the case runs "
        "within the time that it spans.",
    ),
    "one stream time for both sides": (
        frozenset({"kafka"}),
        frozenset({"join"}),
        "Kafka's join has one stream time, the newest of both sides. Tidemark's watermark is that of the side further "
        "behind: events of a side that is merely slow must not become late.",
    ),
    "joined as long as it is kept": (
        frozenset({"kafka", "quix"}),
        frozenset({"join"}),
        "Their joins do not judge an event: it meets what the other side's store still has. Tidemark's joins as all "
        "its steps: an event behind the watermark is late, and is kept as such.",
    ),
    "unmatched at once": (
        frozenset({"kafka", "quix"}),
        frozenset({"join"}),
        "They write an event without a match as soon as it comes, and its match too when that comes. Tidemark writes "
        "it once, when no match can come any more: rows never change.",
    ),
    "only looks back": (
        frozenset({"quix"}),
        frozenset({"join"}),
        "A record of quix only meets those that are not newer than itself, so that the order of arrival decides what "
        "matches. Tidemark's matches do not depend on it.",
    ),
    "in time at the watermark": (
        frozenset({"flink"}),
        frozenset({"join"}),
        "Flink's interval join takes an event at the very watermark, though by its own definition none should come. "
        "For Tidemark, as for Spark, it is late.",
    ),
    "keys kept for ever": (
        frozenset({"spark"}),
        frozenset({"dedup"}),
        "Spark's dropDuplicates never forgets a key that has no event time in it. Tidemark's `within` is required: "
        "state must not grow for ever.",
    ),
    "a window after each event": (
        frozenset({"kafka"}),
        frozenset({"sliding"}),
        "Kafka's sliding windows are all that differ in what they hold: one ends with each event, one begins after it. "
        "Tidemark's end with events: a row for each event.",
    ),
    "an event judged by its windows": (
        frozenset({"kafka"}),
        frozenset({"sliding"}),
        "An event whose own window is over still counts in those of later events that are open. Tidemark judges each "
        "event by itself, so that the verdict does not depend on what else is in the state; a repair counts it.",
    ),
    "a row for each event": (
        frozenset({"spark"}),
        frozenset({"timer"}),
        "Spark's processor sees the events of a batch at once, so that what it gives depends on how they were cut. "
        "Tidemark's sees them one by one.",
    ),
    # Kafka and quix also judge a record by a stream time that includes the record itself: no window can tell, since
    # none that holds an event ends at or before it.
}
# Facts of how a case is written, not rules that decide: applied wherever the case calls for them.
AS_WRITTEN = ("watermark names the last instant", "end of a session", "no window before zero", "join without an end")
