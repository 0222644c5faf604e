"""Frames of a range of event time, computed again as the stream computed them; and what differs from the tables."""
