"""Tables are kept small and quick, beside their streams and without a JVM."""
