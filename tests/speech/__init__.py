"""Speech for tests: two recordings, made with espeak-ng, and sounds that are made here.

`garden.flac`: "The weather is nice today, and the children are playing in the garden."
`rivers.ogg`: a minute about rivers, in Opus.
"""
