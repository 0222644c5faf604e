"""Deploys pipelines; what is changed is saved before, and goes back by itself where the new version does not run."""
