"""The load generator: closed loops of chats against an OpenAI-compatible server, from processes of their own."""
