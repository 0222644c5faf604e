"""What ingests read, looked at without a JVM: folders and Kafka."""
