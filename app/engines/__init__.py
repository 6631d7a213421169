"""Inference engines behind one protocol, `base.py`. An engine's libraries are imported only when it is created."""
