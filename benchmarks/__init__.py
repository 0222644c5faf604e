"""Side-by-side measurements; each table in README.md names the command that made it."""
