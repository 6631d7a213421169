"""`make bench NAME=disagg`: what prefilling on workers of its own costs, and what it brings."""
