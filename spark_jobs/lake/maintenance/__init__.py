"""Tables are kept small and quick, beside their streams."""
