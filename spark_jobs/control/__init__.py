"""What is to run, what runs and its state: small objects in the lake, the supervisor and its launchers. No Spark."""
