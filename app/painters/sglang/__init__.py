"""SGLang's diffusion engine, in processes that it starts, on whatever device it finds.

Its other engine, for text, is `app/engines/sglang/`; nothing of that is imported here.
"""
