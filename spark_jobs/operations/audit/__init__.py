"""Results are recounted, and nothing is written."""
