"""A pipeline goes back to what it was after a batch, its tables and who reads them with it."""
