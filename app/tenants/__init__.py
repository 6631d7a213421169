"""Teams that share the fleet: their API keys, limits and shares, what they have used, and who changed what."""
