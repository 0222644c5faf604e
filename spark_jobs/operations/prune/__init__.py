"""Removes of checkpoints and savepoints what nothing needs any more."""
