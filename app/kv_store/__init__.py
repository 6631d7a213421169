"""KV blocks outside engines: in a folder or a bucket, sealed."""
