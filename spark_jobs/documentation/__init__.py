"""Pages about tables, for those who query them."""
