"""Login with tokens of an OpenID Connect issuer, in place of API keys."""
