"""Test suites of others, run against our API: `make conformance`."""
