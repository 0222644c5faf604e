"""The stream: a query's life, its sources, its batches, heartbeats, progress and failures."""
