"""The command `xylem`: a file for each command. They import heavy things when they run, not before."""
