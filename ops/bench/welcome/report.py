"""Targets. Each line of `TARGETS` is a part: a module here with a function of its name."""

from ops.bench.figures import targets
from ops.bench.values import plot, tables

__all__ = ["TARGETS", "TITLE", "plot", "tables"]

TITLE = "A newcomer's first hour"
TARGETS = targets("""
    door: commands_to_first_token <= 2, ready_s <= 8
    commands: help_ms <= 500
    pages: operations_untagged <= 0, pages_without_group <= 0, dynamo_flags_without_row <= 0
        settings_without_description <= 0
    console: axe_serious <= 0
    examples: examples_failing <= 0
    lines: lines_joined_wrong <= 0, lines_s, lines_rss_mb
    keys: keys_without_effect_unreported <= 0
""")
