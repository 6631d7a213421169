"""The command `xylem`: a file for each command. Heavy packages are imported when a command runs, not before."""
