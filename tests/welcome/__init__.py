"""The first hours of six people: each does what its guide says, and its commands, edits and seconds are counted."""
