"""A range of event time is computed again, and what differs is put right."""
