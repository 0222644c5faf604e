"""What is to run, what runs and how it fares: small objects in the lake, the supervisor and its launchers. No Spark."""
