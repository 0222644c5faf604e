"""Checks of tables: expectations as Great Expectations suites, results and reports."""
