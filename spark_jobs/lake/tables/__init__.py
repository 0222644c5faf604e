"""Delta tables without a JVM: opened, appended to, listed, queried; those of `ops`, and those beside results."""
