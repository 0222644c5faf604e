"""Savepoints: taken of a pipeline that runs or stands, listed, and removed."""
