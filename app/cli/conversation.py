"""Messages of `xylem chat`, its own commands, and the lines that are typed."""

import sys
from collections.abc import Callable
from pathlib import Path

from app.cli.report import err, refuse

HELP = """\
/system TEXT   tell the model something before the conversation; without TEXT: nothing
/clear         forget the conversation
/exit          end, as Ctrl-D
/help          this list
Enter sends; Alt-Enter, or Esc and then Enter, begins a new line; what is pasted keeps its lines.
Arrow keys find earlier questions, also of earlier chats, and Ctrl-R searches them."""


class Conversation:
    def __init__(self, system: str | None) -> None:
        self._system, self._turns = system, list[dict[str, str]]()
        self.over = False

    def with_question(self, question: str) -> list[dict[str, str]]:
        """The messages of a request."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._turns, {"role": "user", "content": question}]

    def keep(self, question: str, answer: str) -> None:
        self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def own_command(self, line: str) -> str | None:
        """Does what the line says, and says so; None: it is a question."""
        word, _, rest = line.partition(" ")
        match word:
            case "/help":
                return HELP
            case "/system":
                self._system = rest.strip() or None
                return "the model is told this" if self._system else "the model is told nothing before"
            case "/clear":
                self._turns = []
                return "forgotten"
            case "/exit":
                self.over = True
                return ""
        if word.startswith("/") and word[1:].isalpha():
            return f"there is no {word}; /help says what there is"
        return None


def line_reader() -> Callable[[], str]:
    """Asks for a line, which may have several: on a terminal with a history. It raises EOFError, KeyboardInterrupt."""
    if not sys.stdin.isatty():
        return lambda: err.input("[bold cyan]> [/]")
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import ANSI
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        ANSI("\x1b[1;36m> \x1b[0m"), history=FileHistory(_history_file()), key_bindings=keys, prompt_continuation="  "
    )
    return session.prompt


def _history_file() -> Path:
    """The file, this user's alone: questions are in it."""
    from app.errors import SettingsError
    from app.settings import load_settings

    try:
        file = load_settings().home / "chat_history"
    except SettingsError as exc:
        refuse(exc.message)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(0o600)
    return file
