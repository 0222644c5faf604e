"""Pipelines run in the process of a person."""
