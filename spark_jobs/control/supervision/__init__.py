"""What runs: the supervisor, its drivers, and their signs of life."""
