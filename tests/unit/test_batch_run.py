"""`xylem batch run` against a server in memory: which lines it sends, and what becomes of their answers."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.cli.batch_run.answer_columns import AnswerColumns
from app.cli.batch_run.batch_run import BatchRun, Progress, begin
from app.cli.batch_run.batch_service import BatchService
from app.cli.batch_run.errors import RunError, RunStopped
from app.cli.batch_run.estimate import estimated
from app.cli.batch_run.journal import Journal
from app.cli.batch_run.request_lines import RequestLines, body_of
from app.cli.batch_run.table_input import table_of
from app.cli.batch_run.table_output import write_table
from app.cli.client import ApiError
from app.endpoints import CHAT, TEXT
from tests.pretend_batches import Line, PretendBatches, said

SHOUT = body_of(CHAT.path, "m", "shout {{word}}")


class Killed(BaseException):
    """The process is gone."""


def shouted(line: Line, _tries: int) -> tuple[int, dict[str, Any]]:
    return 200, said(line["body"]["messages"][-1]["content"].removeprefix("shout ").upper())


def words(path: Path, count: int) -> Path:
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "word"])
        writer.writerows([number, f"word {number}"] for number in range(1, count + 1))
    return path


class Run:
    """A run as the command makes it; each call is a process of its own."""

    def __init__(self, server: PretendBatches, source: Path, output: Path, body: dict[str, Any] = SHOUT) -> None:
        self.server, self.source, self.output, self.body = server, table_of(source), output, body
        self.columns = AnswerColumns(CHAT.path, None)
        self.seen: list[Progress] = []
        self.most_lines = 50_000

    def __call__(self, retries: int = 2) -> Journal:
        journal = begin(self.output.with_name("state.run"), "same", 0.0)
        try:
            service = BatchService(self.server.client, patience_s=0)
            run = BatchRun(service, journal, self.source, RequestLines(CHAT.path, self.body), self.columns)
            run.poll_s, run.most_lines = 0, self.most_lines
            run.go("24h", retries, self.seen.append)
            write_table(self.output, self.source, self.columns.columns, run.rows())
        except BaseException:
            journal.close()
            raise
        return journal

    def rows(self) -> list[dict[str, str]]:
        with self.output.open() as file:
            return list(csv.DictReader(file))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return words(tmp_path / "in.csv", 10)


def test_a_hundred_thousand_rows_are_joined_in_order_with_failures_and_a_kill(tmp_path: Path) -> None:
    """Some rows fail once, some always; the process is killed amid the second half, and the same command goes on."""
    count = 100_000

    def answer(line: Line, tries: int) -> tuple[int, dict[str, Any]]:
        number = int(line["custom_id"])
        if number % 1000 == 7:
            return 400, {}
        return (500, {}) if number % 100 == 3 and not tries else shouted(line, tries)

    server = PretendBatches(answer)
    run = Run(server, words(tmp_path / "in.csv", count), tmp_path / "out.csv")
    looks = iter(range(1_000_000))

    def kill(_number: int, request: httpx.Request) -> None:
        if request.url.path.endswith("/content") and next(looks) == 2:
            raise Killed

    server.breaks = kill
    with pytest.raises(Killed):
        run()
    journal = run()
    wrong = 0
    with run.output.open() as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            fails = number % 1000 == 7
            want = (str(number), f"word {number}", "" if fails else f"WORD {number}", fails)
            wrong += (row["id"], row["word"], row["answer"], bool(row["error"])) != want
    assert (number, wrong, journal.failed) == (count, 0, count // 1000)
    assert server.sizes == [50_000, 50_000, 1000], "only what failed, and may do better, is asked again"
    assert server.files == {}, "nothing stays on the server"


@pytest.mark.parametrize("call", range(1, 19))
def test_a_run_goes_on_wherever_it_was_killed_and_asks_nothing_twice(source: Path, tmp_path: Path, call: int) -> None:
    server = PretendBatches(shouted)
    run = Run(server, source, tmp_path / "out.csv")
    run.most_lines = 4
    is_armed = True

    def kill(number: int, _request: httpx.Request) -> None:
        if is_armed and number == call:
            raise Killed

    server.breaks = kill
    with pytest.raises(Killed):
        run()
    is_armed = False
    run().remove()
    assert [row["answer"] for row in run.rows()] == [f"WORD {number}" for number in range(1, 11)]
    assert server.sizes == [4, 4, 2]
    assert server.files == {}


def test_an_answer_of_the_server_that_was_lost_begins_no_second_batch(source: Path, tmp_path: Path) -> None:
    server = PretendBatches(shouted)
    run = Run(server, source, tmp_path / "out.csv")
    handle = server._handle

    def lose(request: httpx.Request) -> httpx.Response:
        answer = handle(request)
        if (request.method, request.url.path) == ("POST", "/v1/batches") and len(server.batches) == 1:
            raise httpx.ReadError("lost")
        return answer

    server.client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(lose))
    with pytest.raises(RunStopped, match="does not answer: lost"):
        run()
    run().remove()
    assert server.sizes == [10]


def test_rows_that_fail_are_tried_again_so_often_and_no_oftener(source: Path, tmp_path: Path) -> None:
    def answer(line: Line, tries: int) -> tuple[int, dict[str, Any]]:
        return (500, {}) if int(line["custom_id"]) == 3 or tries < 2 else shouted(line, tries)

    server = PretendBatches(answer)
    run = Run(server, source, tmp_path / "out.csv")
    assert run().failed == 1
    assert server.sizes == [10, 10, 10]
    assert run.rows()[2] == {"id": "3", "word": "word 3", "answer": "", "error": "of_test: status 500"}
    assert (run.seen[-1].answered, run.seen[-1].failed) == (10, 1)


def test_the_same_command_tries_what_failed_for_good_again(source: Path, tmp_path: Path) -> None:
    wrong = {2, 5}
    server = PretendBatches(lambda line, tries: (400, {}) if int(line["custom_id"]) in wrong else shouted(line, tries))
    run = Run(server, source, tmp_path / "out.csv")
    journal = run()
    assert (journal.failed, server.sizes) == (2, [10])
    journal.close()
    wrong.clear()
    assert run().failed == 0
    assert server.sizes == [10, 2]
    assert [row["answer"] for row in run.rows()] == [f"WORD {number}" for number in range(1, 11)]


def test_a_file_that_is_too_large_for_the_server_is_cut_smaller(source: Path, tmp_path: Path) -> None:
    server = PretendBatches(shouted)
    server.most_bytes = 700
    Run(server, source, tmp_path / "out.csv")().remove()
    assert sum(server.sizes) == 10
    assert len(server.sizes) > 1


def test_a_batch_that_is_refused_leaves_no_upload(source: Path, tmp_path: Path) -> None:
    server = PretendBatches(shouted)
    server.refuses = "no such thing"
    run = Run(server, source, tmp_path / "out.csv")
    with pytest.raises(ApiError, match="no such thing"):
        run()
    assert server.files == {}
    server.refuses = None
    run().remove()


def test_two_processes_do_not_work_on_one_output(tmp_path: Path) -> None:
    journal = begin(tmp_path / "out.run", "a", 0.0)
    with pytest.raises(RunError, match="is another `xylem batch run` at work"):
        begin(tmp_path / "out.run", "a", 0.0)
    journal.close()
    with pytest.raises(RunError, match="of another input or of other options"):
        begin(tmp_path / "out.run", "b", 0.0)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    rows = [{"name": "Ada", "age": 36, "tags": ["x"]}, {"name": "Bob", "age": None, "tags": []}]
    paths = {suffix: tmp_path / f"in.{suffix}" for suffix in ("csv", "jsonl", "txt", "parquet")}
    paths["csv"].write_text('name,age\nAda,36\n"Bo\nb",\n', encoding="utf-8-sig")
    paths["jsonl"].write_text("\n\n".join(map(json.dumps, rows)))
    paths["txt"].write_text("first\n\nlast")
    parquet.write_table(pa.Table.from_pylist(rows), paths["parquet"])
    return paths


def test_each_kind_of_file_has_rows(tables: dict[str, Path]) -> None:
    rows = {suffix: list(table_of(path).rows()) for suffix, path in tables.items()}
    assert rows["csv"] == [{"name": "Ada", "age": "36"}, {"name": "Bo\nb", "age": ""}]
    assert rows["txt"] == [{"text": "first"}, {"text": ""}, {"text": "last"}]
    assert rows["jsonl"] == rows["parquet"] == [
        {"name": "Ada", "age": 36, "tags": ["x"]}, {"name": "Bob", "age": None, "tags": []}
    ]  # fmt: skip


def test_columns_keep_their_types_in_parquet(tables: dict[str, Path], tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"old": {"type": "boolean"}, "why": {"type": ["string", "null"]}}}
    columns = AnswerColumns(CHAT.path, schema, prefix="is_")
    body = json.dumps(
        {"custom_id": "1", "error": None, "response": {"status_code": 200, "body": said('{"old": true}')}}
    )
    answer = columns.read(body)
    assert answer is not None
    for suffix in ("jsonl", "parquet"):
        source = table_of(tables[suffix])
        rows = [columns.merged(row, answer) for row in source.rows()]
        write_table(tmp_path / "out.parquet", source, columns.columns, rows)
        table = parquet.read_table(tmp_path / "out.parquet")
        assert table.column_names == ["name", "age", "tags", "is_old", "is_why", "is_error"]
        assert [str(kind) for kind in table.schema.types[3:]] == ["bool", "string", "string"]
        assert table["age"].to_pylist() == [36, None]
        tags = table["tags"].to_pylist()
        assert tags == ([["x"], []] if suffix == "parquet" else ['["x"]', "[]"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.csv", "a,b\n1\n", "line 2: it has not as many cells as the first"),
        ("in.csv", "a,a\n1,2\n", "two columns have the same name"),
        ("in.jsonl", '{"a": 1}\n[2]\n', "line 2: no JSON object"),
        ("in.jsonl", '{"a": 1}\n{\n', "line 2: no JSON"),
        ("in.xlsx", "", "has to end with .csv, .jsonl, .txt, .parquet"),
        ("in.parquet", "no", "in.parquet: Parquet file size is 2 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=words):
        list(table_of(tmp_path / name).rows()) and table_of(tmp_path / name).columns
    with pytest.raises(RunError, match="No such file"):
        list(table_of(tmp_path / "absent.csv").rows())


def test_templates_fill_texts_and_pass_a_column_alone_as_it_is() -> None:
    lines = RequestLines("/v1/rerank", {"model": "m", "query": "of {{q}}: {{row['a b']}}", "documents": "{{docs}}"})
    row = {"q": "x", "a b": None, "docs": ["1", "2"]}
    assert lines.body(1, row) == {"model": "m", "query": "of x: ", "documents": ["1", "2"]}
    assert json.loads(lines.line(7, row)) == {
        "custom_id": "7", "method": "POST", "url": "/v1/rerank", "body": lines.body(1, row)
    }  # fmt: skip


def test_a_schema_has_no_templates_and_bounds_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "{{x}}"}}}
    body = RequestLines(CHAT.path, body_of(CHAT.path, "m", "{{x}}", system="be {{y}}"), schema).body(
        1, {"x": 1, "y": 2}
    )
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert body["messages"] == [{"role": "system", "content": "be 2"}, {"role": "user", "content": "1"}]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("{{nothing}}", "row 3: 'nothing' is undefined; its columns are '"),
        ("{{", "messages.content: unexpected"),
        ("{{ ''.__class__.__mro__ }}", "row 3: access to attribute '__class__'"),
    ],
)
def test_a_template_that_is_wrong_is_named_with_the_row(prompt: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        RequestLines(CHAT.path, body_of(CHAT.path, "m", prompt)).line(3, {"text": "x"})


def test_what_cannot_be_asked_is_refused_before_anything_is_sent() -> None:
    for ask, words in (
        (lambda: RequestLines("/v1/videos", SHOUT), "--endpoint /v1/videos"),
        (lambda: body_of("/v1/rerank", "m", "x"), "/v1/rerank has no prompt"),
        (lambda: body_of(CHAT.path, "m", None), "--prompt or --body"),
        (lambda: body_of("/v1/messages", "m", "x"), "--max-tokens"),
        (lambda: RequestLines("/v1/embeddings", SHOUT, {}), "--schema is for"),
        (lambda: AnswerColumns(CHAT.path, {"type": "array"}), "--schema has to be of an object"),
        (lambda: AnswerColumns(CHAT.path, None).check(table_of(Path("x.jsonl")).columns), "No such file"),
    ):
        with pytest.raises(RunError, match=words):
            ask()


def test_a_column_of_the_input_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("answer\n1\n")
    columns = table_of(tmp_path / "in.csv").columns
    with pytest.raises(RunError, match="--prefix"):
        AnswerColumns(CHAT.path, None).check(columns)
    AnswerColumns(CHAT.path, None, prefix="new_").check(columns)


def test_an_answer_that_was_cut_amid_its_json_is_an_error() -> None:
    columns = AnswerColumns(CHAT.path, {"type": "object", "properties": {"a": {"type": "string"}}})
    line = {"custom_id": "4", "error": None, "response": {"status_code": 200, "body": said('{"a": "x', "length")}}
    answer = columns.read(json.dumps(line))
    assert answer is not None
    assert (answer.row, answer.again, answer.is_cut) == (4, False, True)
    assert "an answer of another form" in (answer.error or "")


def test_a_budget_that_is_used_until_tomorrow_is_not_waited_for() -> None:
    """The server says when to come again; the command's patience is a minute."""
    calls: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        error = {"error": {"message": "its budget is used"}}
        return httpx.Response(429, headers={"retry-after": "3600"}, json=error)

    with (
        httpx.Client(base_url="http://server", transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(ApiError, match="its budget is used"),
    ):
        BatchService(client).tokens({})
    assert calls == ["/tokenize"]


def test_an_estimate_has_no_longer_answers_than_the_request_takes() -> None:
    """Answers of earlier batches were ten times as long."""
    lines = RequestLines(TEXT.path, {"model": "m", "prompt": "{{t}}", "max_tokens": 3})
    batch = {
        "model": "m", "endpoint": TEXT.path, "in_progress_at": 0, "completed_at": 10,
        "request_counts": {"completed": 100}, "usage": {"total_tokens": 4000, "output_tokens": 3000},
    }  # fmt: skip
    service: Any = SimpleNamespace(tokens=lambda _: 10, ended_batches=lambda: [batch])
    estimate = estimated(service, lines, 50, [(1, {"t": "x"})])
    assert (estimate.prompt, estimate.completion) == (500, 150)
