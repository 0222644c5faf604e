"""Steps, row rules and late rows as DataFrame operations, the same for stream and batch."""
