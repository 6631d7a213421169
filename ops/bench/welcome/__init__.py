"""Measures of a newcomer's first hour: a module for each part, with a function of the part's name."""
