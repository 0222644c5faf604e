"""Changes to tables: making them, and committing each batch exactly once."""
