"""One query's life: session, sources, the late split, the ledger, commits, checkpoints, progress."""
