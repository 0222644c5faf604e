"""The ledger: what became of every event, whether it adds up, and what others have changed."""
