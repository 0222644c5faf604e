"""The state of a stopped pipeline gets another number of partitions, and keeps all of its rows."""
