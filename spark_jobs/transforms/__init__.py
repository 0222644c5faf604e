"""Steps and row rules as DataFrame operations, the same for stream and batch."""
