"""`make bench NAME=media`: pictures and sound in, pictures and video out."""
