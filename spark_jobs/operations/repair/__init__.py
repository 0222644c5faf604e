"""Late events are counted after all."""
