"""What a version of an engine has, read from its sources, against what the adapters know of it."""
