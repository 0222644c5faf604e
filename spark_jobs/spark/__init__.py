"""Spark itself: its session, its settings and its internals. Nothing else reaches into its JVM."""
