"""The console: pages for a browser, and what they show of the fleet."""
