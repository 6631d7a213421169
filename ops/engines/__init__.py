"""Compares what a version of an engine has, read from its sources, with what the adapters know of it."""
