"""Tidemark: a streaming lakehouse in which every event is accounted for."""
