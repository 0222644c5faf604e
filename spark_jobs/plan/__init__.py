"""What a definition means: pure, without Spark and without storage."""
