"""Fetching and decoding media, against a hostile server of our own."""
