"""Real services for the tests: MinIO and Kafka as processes of their own, and what runs against them."""
