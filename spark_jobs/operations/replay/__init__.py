"""What was set aside in a quarantine is read, or looked up, again."""
