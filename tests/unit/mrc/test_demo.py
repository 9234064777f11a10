import functools
import http.client
import json
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape
from urllib.parse import urlencode

import pytest

from portico.commands.demo import main
from portico.errors import InputError
from portico.mrc import Reader
from portico.mrc.demo import LIMITS, Demo, DemoExample, Turn, Turns, demo_page, open_socket, read_example
from portico.mrc.question_results import question_result
from portico.mrc.report.results import RunRecord
from portico.mrc.report.run_page import example_questions, record_run
from report_pages import BROWSER, browse, result, with_script

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def reader(model_folder):
    return Reader(model_folder, device="cpu", handle_impossible_answer=True)


@contextmanager
def serving(reader, limits=LIMITS):
    with open_socket(0) as listener:
        demo = Demo("A reader", reader, DemoExample(), port=listener.getsockname()[1], limits=limits)
        server = demo.server()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        demo.connections = server.server_state.connections
        yield demo
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.fixture
def server(reader):
    with serving(reader) as one:
        yield one


def port_of(server):
    return int(server.address.rpartition(":")[2])


def send(server, method="GET", path="/", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def ask(server, headers=FORM, **fields):
    return send(server, "POST", "/", urlencode(fields), **headers)


def test_a_question_is_answered(server, reader, questions):
    question, context = questions[0]["question"], questions[0]["context"]
    expected = reader.answer(question, context, handle_impossible_answer=False)
    response, page = ask(server, question=question, context=context)
    assert response.status == 200
    assert unescape(re.search(r"<mark>(.*?)</mark>", page)[1]) == expected.text
    assert f"{expected.probability:.1%}" in page
    assert page.count("<tr><td><bdi>") == len(expected.candidates)
    assert "threshold" not in page
    _, page = ask(server, question=question, context=context, may_decline="on")
    assert unescape(re.search(r"(The score of .*?)</div>", page)[1]) == reader.answer(question, context).reason


def test_the_page_begins_with_an_empty_form(server):
    response, page = send(server)
    assert response.status == 200
    assert re.search(r"<textarea[^>]*>\s*</textarea>", page)
    assert 'name="may_decline" checked' in page
    assert 'portico-answer"' not in page
    assert response.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "form-action 'self'" in unescape(page)


def test_the_page_opens_with_what_the_run_answers(server, questions, tmp_path):
    results = [
        question_result(one, next(iter(one["answers"]["text"]), ""), span=None, nbest=None, null_odds=None)
        for one in questions
    ]
    record_run(tmp_path, RunRecord(title="A run", results=results))
    server.example = read_example(tmp_path)
    context, asked = server.example.context, server.example.all_questions
    about = {one["question"]: bool(one["answers"]["text"]) for one in questions if one["context"] == context}
    assert [about[one] for one in asked] == [*[True] * (len(asked) - 1), False]
    _, page = send(server)
    assert re.search(r"Evaluation of this run: \d+ questions, \d+ of them without an answer: ", page)
    before, after = page.split("Correctly without an answer in the evaluation")
    assert "Answered correctly in the evaluation" in before
    assert unescape(after).count('name="example"') == 1
    assert unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.S)[1]) == context
    assert unescape(re.search(r'name="question".*?value="(.*?)"', page)[1]) == asked[0]
    assert [unescape(one) for one in re.findall(r'name="example".*?>(.*?)</button>', page)] == asked
    last = len(asked) - 1
    _, page = ask(server, context="something else", question="", example=str(last))
    assert unescape(re.search(r'class="asked"[^>]*>(.*?)<', page)[1]) == asked[last]
    assert unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.S)[1]) == context
    assert 'name="may_decline" checked' in page
    assert ask(server, context="", question="", example=str(last + 1))[0].status == 400


def test_an_answered_question_is_shown_rather_than_a_declined_one():
    one = functools.partial(result, gold="", predicted="")
    alone, other = one(0, context="Nothing."), result(1, context="Turku is old.")
    assert example_questions([alone, other]) == {
        "context": "Turku is old.",
        "questions": [other.question],
        "declined": [],
    }
    assert example_questions([alone]) == {"context": "Nothing.", "questions": [], "declined": [alone.question]}
    assert example_questions([]) == {}


@pytest.mark.parametrize(
    "recorded",
    ["", "{}", "[1]", '{"example": null}', '{"example": {"context": "a", "questions": 3}}', '{"example": [1]}'],
)
def test_a_record_without_an_example_leaves_the_form_empty(tmp_path, recorded):
    (tmp_path / "report.json").write_text(recorded)
    assert read_example(tmp_path) == read_example(tmp_path / "none") == DemoExample()


def in_script(text):
    return json.dumps(text).replace("<", "\\u003c")


def test_what_was_asked_is_escaped_and_kept(server):
    text = '</textarea><script>alert("x")</script>\r\n<b>Oslo</b>'
    _, page = ask(server, question='"><img src=x>', context=text)
    assert "<img" not in page
    assert "<script>alert" not in page
    assert 'value="&#34;&gt;&lt;img src=x&gt;"' in page
    kept = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.S)[1]
    assert unescape(kept) == text.replace("\r\n", "\n")


@pytest.mark.parametrize("fields", [{}, {"question": "Who?"}, {"question": " ", "context": "x"}])
def test_both_fields_are_needed(server, fields):
    response, page = ask(server, **fields)
    assert response.status == 400
    assert "Paste a text and type a question." in page


def test_an_error_of_the_reader_is_shown(server, monkeypatch):
    def refuse(*_, **__):
        raise InputError("The <b>scores</b> are not finite.")

    monkeypatch.setattr(server.reader, "answer", refuse)
    response, page = ask(server, question="Who?", context="Anna lives in Oslo.")
    assert response.status == 400
    assert "The &lt;b&gt;scores&lt;/b&gt; are not finite." in page
    assert "Anna lives in Oslo." in page


def test_an_unexpected_error_is_shown_in_the_terminal_only(server, monkeypatch, capfd):
    def fail(*_, **__):
        raise ZeroDivisionError("private")

    monkeypatch.setattr(server.reader, "answer", fail)
    response, page = ask(server, question="Who?", context="Anna lives in Oslo.")
    assert (response.status, page) == (500, "An error occurred; the terminal shows it.")
    assert capfd.readouterr().err.count("ZeroDivisionError: private") == 1


def test_a_long_question_is_answered(server):
    response, _ = ask(server, question="who is it " * 100, context="Anna lives in Oslo. " * 100)
    assert response.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://localhost"},
        {"Host": "["},
    ],
)
def test_other_sites_are_refused(server, headers):
    for method in ("GET", "POST"):
        response, text = send(server, method, "/", "question=a&context=b", **FORM, **headers)
        assert response.status == 403
        assert text.startswith("This page answers this machine only: http://127.0.0.1:")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_this_machine_is_not_refused(server, name):
    host = f"{name}:{port_of(server)}"
    assert send(server, Host=host, Origin=f"http://{host}")[0].status == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Content-Type": "application/json"}, 400),
        ("", {**FORM, "Content-Length": str(2 * LIMITS.bytes_of_form)}, 413),
        ("", {**FORM, "Content-Length": "-1"}, 400),
        ("", {**FORM, "Content-Length": "9" * 5_000}, 400),
        ("a=&" * 1_000, FORM, 400),
        ("example=" + "9" * 5_000, FORM, 400),
        ("question=a&context=" + "b" * (LIMITS.context + 1), FORM, 413),
        ("context=a&question=" + "b" * (LIMITS.question + 1), FORM, 413),
    ],
)
def test_what_is_not_a_form_of_the_page_is_refused(server, capfd, body, headers, status):
    assert send(server, path="/favicon.ico")[0].status == 404
    response, page = send(server, "POST", "/", body, **headers)
    assert response.status == status
    if "context=" in body:
        assert re.search("The (text|question) has [0-9,]+ characters; at most (100,000|2,000) are read.", page)
        assert "Up to 100,000 characters of text and 2,000 of a question, 30 seconds for an answer." in page
    assert "Traceback" not in capfd.readouterr().err


def test_only_this_machine_is_served():
    with open_socket(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def half_sent(server, text):
    one = socket.create_connection(("127.0.0.1", port_of(server)))
    one.sendall(text.format(port=port_of(server)).encode())
    return one


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize(
    "begun",
    [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Ty",
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        "Content-Length: 1000\r\n\r\nquestion=a",
    ],
    ids=["half a head", "half a form"],
)
def test_requests_that_are_never_sent_are_closed(reader, begun):
    with serving(reader, LIMITS._replace(connections=5, seconds_to_send=2.0)) as server:
        sockets = [half_sent(server, begun) for _ in range(30)]
        assert until(lambda: 0 < len(server.connections) <= 6)
        assert send(server)[0].status == 200
        assert until(lambda: not server.connections)
        for one in sockets:
            one.close()


def test_questions_beyond_the_queue_are_answered_by_503(reader, monkeypatch):
    is_asked, may_answer = threading.Event(), threading.Event()

    def wait(*_, **__):
        is_asked.set()
        may_answer.wait(30)
        raise InputError("Enough.")

    monkeypatch.setattr(reader, "answer", wait)
    with serving(reader, LIMITS._replace(waiting=1)) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, server, question="Who?", context="Anna.")
        assert is_asked.wait(30)
        second = pool.submit(ask, server, question="Who?", context="Anna.")
        assert until(lambda: server._num_waiting == 2)
        response, page = ask(server, question="Where is she?", context="Anna lives in Oslo.")
        assert response.status == 503
        assert "1 questions are waiting already; ask again in a moment." in page
        assert 'value="Where is she?"' in page
        assert send(server)[0].status == 200
        may_answer.set()
        assert [one.result()[0].status for one in (first, second)] == [400, 400]


@pytest.fixture
def slow(model_folder):
    """A reader that takes a minute for `LONG`, and an event that is set once it runs."""
    reader, is_running = Reader(model_folder, device="cpu", batch_size=1), threading.Event()

    def one_batch(*_):
        is_running.set()
        time.sleep(0.2)

    reader._loaded.model.register_forward_pre_hook(one_batch)
    return reader, is_running


LONG = "Anna lives in Oslo. " * 4_000


@pytest.mark.parametrize("num_questions", [1, 3])
def test_ctrl_c_does_not_wait_for_answers(slow, num_questions):
    slow, is_running = slow
    with ThreadPoolExecutor(num_questions) as pool:
        with serving(slow) as server:
            asked = [pool.submit(ask, server, question="Who?", context=LONG) for _ in range(num_questions)]
            assert is_running.wait(30)
            until(lambda: server._num_waiting == num_questions)
            ended = time.monotonic()
        assert time.monotonic() - ended < 5
        assert {one.result()[0].status for one in asked} == {503}


def test_short_questions_do_not_wait_for_long_texts(slow):
    """However many there are: long texts do not come first because they have waited."""
    slow, is_running = slow
    alone = slow.answer("Who?", "Anna lives in Oslo.", handle_impossible_answer=False)
    is_running.clear()
    with ThreadPoolExecutor(8) as pool, serving(slow) as server:
        asked = [pool.submit(ask, server, question="Who?", context=LONG) for _ in range(8)]
        assert is_running.wait(30)
        assert until(lambda: server._num_waiting == 8)
        for _ in range(5):
            response, page = ask(server, question="Who?", context="Anna lives in Oslo.")
            assert response.status == 200
        assert f"{alone.probability:.1%}" in page
        assert not any(one.done() for one in asked)


def test_a_long_answer_with_pauses_is_the_same(slow, monkeypatch):
    slow, is_running = slow
    long = LONG[:300]
    expected = slow.answer("Who?", long, handle_impossible_answer=False)
    is_running.clear()
    with ThreadPoolExecutor(1) as pool, serving(slow) as server:
        asked = pool.submit(ask, server, question="Who?", context=long)
        assert is_running.wait(30)
        assert ask(server, question="Where?", context="Anna lives in Oslo.")[0].status == 200
        response, page = asked.result()
    assert response.status == 200
    assert f"{expected.probability:.1%}" in page
    assert page.count("<tr><td><bdi>") == len(expected.candidates)


def order_of(sizes, num_batches=1):
    """Return the sizes of questions, all asked while the first is being read, in the order in which they end."""
    turns, ended, may_end, is_first = Turns(), [], threading.Event(), threading.Event()

    def read(turn, pause):
        is_first.set()
        assert may_end.wait(30)
        for _ in range(num_batches):
            pause()
        ended.append((turn.size, turn.depth))
        return turn.size

    asked = [Turn(size, read) for size in sizes]
    turns.begin(asked[0])
    assert is_first.wait(30)
    for turn in asked[1:]:
        turns.begin(turn)
    may_end.set()
    assert [turn.answer.result(30) for turn in asked] == sizes
    return ended


def test_the_shortest_is_next_but_none_waits_forever():
    def sizes(*asked):
        return [size for size, _ in order_of([*asked])]

    assert sizes(40, 35, 10, 30, 20) == [40, 10, 20, 30, 35]
    assert sizes(40, 35, 11, 12, 13, 14, 15) == [40, 11, 12, 13, 35, 14, 15]


def test_a_question_pauses_for_much_shorter_ones():
    """After each batch for one, so that it goes on itself; and these pause in turn."""
    assert order_of([100, 10, 1, 90]) == [(1, 1), (100, 0), (10, 0), (90, 0)]
    assert order_of([100, 10, 1, 90], num_batches=2) == [(1, 1), (10, 1), (100, 0), (90, 0)]
    assert order_of([10_000, 1_000, 100, 10, 1], num_batches=1)[0] == (1, 1)


def test_a_question_that_is_cancelled_is_not_read():
    turns, is_running, may_end = Turns(), threading.Event(), threading.Event()

    def read(turn, pause):
        is_running.set()
        assert may_end.wait(30)
        return turn.size

    first, left, last = (Turn(size, read) for size in (3, 2, 1))
    turns.begin(first)
    assert is_running.wait(30)
    turns.begin(left)
    assert left.answer.cancel()
    turns.begin(last)
    may_end.set()
    assert (first.answer.result(30), last.answer.result(30), left.started) == (3, 1, None)


def test_the_limit_of_time_holds_where_nothing_can_be_interrupted(reader, monkeypatch):
    """Neither a tokenizer nor a post-processing can."""
    may_end = threading.Event()
    monkeypatch.setattr(reader, "answer", lambda *_, **__: may_end.wait(30))
    monkeypatch.setattr("portico.mrc.demo._SECONDS_BEYOND", 0.1)
    with serving(reader, LIMITS._replace(seconds=0.1)) as server:
        response, page = ask(server, question="Who?", context="Anna lives in Oslo.")
        assert response.status == 400
        assert "It took longer than 0.1 seconds (`max_seconds`); give a shorter context, or raise the limit." in page
        may_end.set()


def test_the_time_of_the_tokenizer_counts(reader, monkeypatch):
    is_run = []
    monkeypatch.setattr("portico.mrc.inference.Inference.answers", lambda *_: is_run.append(True))
    with pytest.raises(InputError, match=r"It took longer than 0 seconds \(`max_seconds`\)"):
        reader.answers(["Who?"], ["Anna lives in Oslo."], max_seconds=0.0)
    assert not is_run


def test_an_answer_is_ended_when_its_browser_leaves(slow):
    slow, is_running = slow
    with serving(slow) as server:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(server))
        connection.request("POST", "/", urlencode({"question": "Who?", "context": LONG}), FORM)
        assert is_running.wait(30)
        connection.close()
        left = time.monotonic()
        response, _ = ask(server, question="Who?", context="Anna lives in Oslo.")
        assert response.status == 200
        assert time.monotonic() - left < 10


def test_an_answer_that_takes_too_long_is_ended(reader):
    with serving(reader, LIMITS._replace(seconds=0.0)) as server:
        response, page = ask(server, question="Who?", context="Anna lives in Oslo.")
        assert response.status == 400
        assert "It took longer than 0 seconds (`max_seconds`); give a shorter context, or raise the limit." in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["EMPTY"],
            r"`RUN=EMPTY` contains no model \(config.json, which a run writes last, is missing\); name",
        ),
        (
            ["PLAIN"],
            r"`RUN=PLAIN` contains no model .*; the demo loads models of transformers only",
        ),
        (
            ["PLAIN/checkpoint-1"],
            r"`RUN=PLAIN/checkpoint-1` contains no model .*; the demo loads models of transformers only",
        ),
        (["/no/such/run"], "`RUN=/no/such/run` does not exist; set it to a folder written by `save_pretrained`"),
        (["nothere"], "`RUN=nothere` is not a folder, and was not found on the hub"),
        (
            ["outputs/typo"],
            "`RUN=outputs/typo` does not exist; name the folder of a finished run, or a reader on the hub",
        ),
        (["EMPTY", "--port", "70000"], "`--port 70000` is not a valid port; use one from 1 to 65535, or 0"),
        (["EMPTY", "--port", "TAKEN"], r"`--port TAKEN` cannot be used \(Address already in use\); choose another"),
        (["MODEL", "--device", "tpu"], "`--device=tpu` is unknown; use auto, cpu"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_paragraph(
    tmp_path, model_folder, capsys, monkeypatch, arguments, message
):
    (tmp_path / "outputs").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "plain/checkpoint-1").mkdir(parents=True)
        (tmp_path / "plain/checkpoint-1/trainer_state.json").write_text("{}")
        (tmp_path / "plain/checkpoint-1/model.safetensors").touch()
        names = {
            "EMPTY": tmp_path,
            "PLAIN/checkpoint-1": tmp_path / "plain/checkpoint-1",
            "PLAIN": tmp_path / "plain",
            "MODEL": model_folder,
            "TAKEN": taken.getsockname()[1],
        }
        with pytest.raises(SystemExit) as ended:
            main([str(names.get(one, one)) for one in ["--port", "0", *arguments]])
        assert ended.value.code == 1
        for name, value in names.items():
            message = message.replace(name, str(value))
        assert re.match(f"error: {message}", capsys.readouterr().err)


def test_a_missing_server_is_named_before_the_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.delitem(sys.modules, "starlette.applications")
    monkeypatch.delitem(sys.modules, "portico.mrc.demo")
    with pytest.raises(SystemExit):
        main(["/no/such/run"])
    assert capsys.readouterr().err == (
        "error: portico demo needs starlette, which is not installed; install it with `pip install 'portico[demo]'`.\n"
    )


def test_a_run_that_was_stopped_names_its_checkpoint(tmp_path, capsys):
    (tmp_path / "checkpoint-8").mkdir()
    for name in ("trainer_state.json", "config.json"):
        (tmp_path / "checkpoint-8" / name).write_text("{}")
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--port", "0"])
    assert "name its last checkpoint, " in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on the PATH")
def test_a_browser_asks_and_shows_the_answer(server, reader, questions, tmp_path, monkeypatch):
    question, context = questions[1]["question"], f"{questions[1]['context']}\n<script>document.title = 'no'</script>"
    script = """
    const one = (selector) => document.querySelector(selector);
    if (!one(".portico-answer")) {
      one("textarea").value = CONTEXT; one("[name=question]").value = QUESTION;
      one("form button").click();
      await new Promise(() => {});
    }
    one(".portico-answer > details summary").click();
    const size = document.documentElement;
    return [one("mark").textContent, one(".asked").textContent, one(".portico-answer table").offsetHeight > 0,
      one("textarea").value, document.title, size.scrollWidth <= size.clientWidth];
    """
    script = script.replace("CONTEXT", in_script(context)).replace("QUESTION", in_script(question))
    monkeypatch.setattr(
        "portico.mrc.demo.demo_page", lambda *args, **kwargs: with_script(demo_page(*args, **kwargs), script)
    )
    expected = reader.answer(
        question, context, null_score_diff_threshold=server.reader.settings.null_score_diff_threshold
    )
    marked, asked, is_open, kept, title, fits = browse(f"{server.address}/", tmp_path)
    assert (marked, asked, kept) == (expected.best_span.text, question, context)
    assert (is_open, title, fits) == (True, "A reader", True)
