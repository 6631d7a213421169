"""A substitute for the package of this name, which SGLang's own server imports for sound: the benchmark sends none."""


def available_formats() -> dict[str, str]:
    """Asked by mistral_common when it is imported."""
    return {}
