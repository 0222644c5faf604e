"""Another version of a pipeline beside the one that runs: ordered, compared with it, promoted or dropped."""
