"""Checkpoints of a lake that was moved fit to where it is now."""
