"""Values of personal columns, as people see them."""

MASK = "‹masked›"
"""Shown in place of a value."""
