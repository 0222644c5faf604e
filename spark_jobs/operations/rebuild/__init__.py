"""The results of a changed definition take the place of those before."""
