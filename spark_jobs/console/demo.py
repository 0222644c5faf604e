"""The demonstration behind `make run`: a simulated shop, its pipelines, and what became of every event."""
