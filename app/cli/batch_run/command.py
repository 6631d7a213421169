"""`xylem batch run`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.client import HERE, Key, Url, connected
from app.cli.report import err, refuse


def run(
    file: Annotated[Path, typer.Argument(help="Ends with .csv, .parquet, .jsonl or .txt: a row for each request.")],
    model: Annotated[str, typer.Option(help="The model that answers.")],
    output: Annotated[Path, typer.Option(help="Ends with .csv, .jsonl or .parquet: the rows with their answers.")],
    prompt: Annotated[
        str | None, typer.Option(help="'Translate: {{column}}', in Jinja's notation; @FILE: the text of a file.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="Any that batches have.")] = "/v1/chat/completions",
    system: Annotated[str | None, typer.Option(help="A system prompt, as --prompt.")] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Answers have this JSON schema; properties become columns. @FILE."),
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other fields of each request; its texts are templates. @FILE.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens of an answer.")] = None,
    prefix: Annotated[str, typer.Option(help="Begins the names of new columns: answer, error.")] = "",
    window: Annotated[str, typer.Option(help="How long each batch may take: 90s, 30m, 24h, 7d.")] = "24h",
    retries: Annotated[int, typer.Option(min=0, max=10, help="Further tries of rows that fail.")] = 2,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say how many tokens and how much time it would take.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")] = False,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Answer each row of a table, and write the table with the answers, in the same order.

    After Ctrl-C or a kill, the same command goes on: a file beside the output has the state until the end.
    """
    from app.batch.window import read_window
    from app.cli.batch_run import execution
    from app.cli.batch_run.answer_columns import AnswerColumns
    from app.cli.batch_run.errors import RunError, RunStopped
    from app.cli.batch_run.request_lines import RequestLines, body_of, object_of, text_of
    from app.cli.batch_run.table_input import table_of
    from app.errors import RequestError

    try:
        shape = None if schema is None else object_of("--schema", schema)
        fields = body_of(
            endpoint,
            model,
            None if prompt is None else text_of("--prompt", prompt),
            system=None if system is None else text_of("--system", system),
            max_tokens=max_tokens,
            more=None if body is None else object_of("--body", body),
        )
        read_window(window)
        lines, columns = RequestLines(endpoint, fields, shape), AnswerColumns(endpoint, shape, prefix=prefix)
        work = execution.Work(table_of(file), lines, columns, output)
        with connected(url, key) as client:
            if estimate:
                execution.estimate(work, client)
            else:
                execution.execute(work, client, window, retries, overwrite=overwrite)
    except (RunError, RequestError) as exc:
        refuse(str(exc))
    except RunStopped as exc:
        refuse(f"{exc}; the same command goes on", code=1)
    except KeyboardInterrupt:
        err.print("[dim]Its batches go on, and so does the same command. They are in: xylem batch list[/]")
        raise typer.Exit(130) from None
