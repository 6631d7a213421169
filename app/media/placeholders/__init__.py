"""The tokens that stand for a picture or a sound in a prompt, per family of models, from the model's own files.

They are the engine's own expansion, made here: for counting, limits, routing and block hashes.
"""

from app.media.placeholders.family import PictureFamily, Sounds
from app.media.placeholders.load import pictures_of, sounds_of

__all__ = ["PictureFamily", "Sounds", "pictures_of", "sounds_of"]
