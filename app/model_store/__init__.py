"""Models that a pool names by `hf://` or `s3://`: fetched once, checked, kept in a bounded folder of this machine."""
