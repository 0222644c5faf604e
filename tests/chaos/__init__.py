"""Drivers that are killed for real, as often as asked, at seeded moments."""
