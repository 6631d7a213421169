"""Lines of code are counted without blank lines, comments and docstrings."""

from ops.lines import code

SOURCE = '''"""Text

of a module."""

# a comment
x = 1  # another


def f() -> None:
    """One."""
    y = """

    a text"""
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    """A text that is assigned is code, with its blank lines."""
    assert code(SOURCE) == 1 + 1 + 3
