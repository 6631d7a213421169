"""The day with a GPU: one check for each row of the feature list that only a GPU shows, by one command."""
