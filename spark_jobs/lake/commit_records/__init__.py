"""What commits say of themselves, and what a commit is held against before it has its place in a table's log."""
