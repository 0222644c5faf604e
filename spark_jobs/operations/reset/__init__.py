"""A pipeline starts over from its source, in a new epoch."""
