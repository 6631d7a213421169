"""A process that compiles grammars with llguidance, which recurses over them."""

from app.grammars.compile import check
from app.grammars.serving import serve_checks

if __name__ == "__main__":
    serve_checks(check)
