"""Hugging Face diffusers: pictures and videos, on a GPU or a CPU."""
