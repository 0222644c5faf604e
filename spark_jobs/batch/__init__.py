"""What is computed again over a range of events: backfill, repair, audit."""
