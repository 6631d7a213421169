"""Where a request goes: decided purely, from data. No I/O in this folder. README.md has the formulas."""
