"""The state of a pipeline as rows: which batch, a copy of what tells it, and the rows."""
