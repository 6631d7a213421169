"""Pictures and sound of requests: fetched, checked and decoded in the API. No torch, no engine."""
