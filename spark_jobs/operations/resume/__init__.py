"""A halted pipeline goes on as a person decides."""
