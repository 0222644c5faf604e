"""A new pipeline begins with its history."""
