"""Measures of the feature list's single rows: a module for each part, with a function of the part's name."""
