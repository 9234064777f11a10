"""A page on this machine on which a trained reader answers questions."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from portico.checkpoint.manifest import newest_complete
from portico.errors import InputError, naming
from portico.mrc.inference import Answer, Reader, answer_html
from portico.mrc.report.run_page import REPORT_RECORD
from portico.report.page import Section, render, render_page

_ADDRESS = "127.0.0.1"
_OWN_NAMES = (_ADDRESS, "localhost")
_MOST_BYTES = 4_000_000
_FORM = "application/x-www-form-urlencoded"


class DemoExample(NamedTuple):
    """A text, and questions about it that the run answered correctly in its evaluation."""

    context: str = ""
    questions: Sequence[str] = ()


def serve(run: str, *, port: int = 8000, device: str = "auto") -> None:
    """Serve the page of a reader until Ctrl-C.

    Args:
        run: Folder of a run, or the name of a reader on the hub.
        port: Port to listen on, 0 for any that is free.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:<number>`` or ``ort``.

    Raises:
        InputError: If the reader cannot be loaded, or the port cannot be used.
    """
    try:
        # The port is taken first: loading a model takes longer.
        with DemoServer(Path(run).name, port) as server:
            server.reader = _load(run, device)
            server.example = read_example(run)
            print(f"{run} answers at {server.address} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print()


def _load(run: str, device: str) -> Reader:
    folder = Path(run)
    if folder.is_dir() and not (folder / "config.json").is_file():
        checkpoint = newest_complete(folder)
        instead = f"name its last checkpoint, {checkpoint}" if checkpoint else "name the folder of a finished run"
        raise InputError(
            f"`RUN={run}` contains no model (config.json, which a run writes last, is missing); {instead}."
        )
    if not folder.exists() and folder.parent.name and folder.parent.is_dir():
        # Otherwise `outputs/typo` would be looked for on the hub.
        raise InputError(f"`RUN={run}` does not exist; name the folder of a finished run, or a reader on the hub.")
    with naming({"model": "RUN", "device": "--device"}):
        return Reader(run, device=device)


def read_example(run: str | Path) -> DemoExample:
    """Return the passage and questions that ``report.json`` of the run shows, or none if it is missing or has none."""
    try:
        recorded = json.loads(Path(run, REPORT_RECORD).read_text(encoding="utf-8"))
        one = DemoExample(recorded["example"]["context"], recorded["example"]["questions"])
        is_usable = isinstance(one.questions, list) and all(isinstance(text, str) for text in [*one.questions, one[0]])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return DemoExample()
    return one if is_usable else DemoExample()


class DemoServer(ThreadingHTTPServer):
    """Serves one reader to the browsers of this machine.

    Args:
        title: Heading of the page.
        port: The port, 0 for any that is free.

    Raises:
        InputError: If the port cannot be used.
    """

    # Browsers open connections in advance, which would block a server of one thread, and its end.
    daemon_threads = True
    reader: Reader
    example = DemoExample()

    def __init__(self, title: str, port: int) -> None:
        if not 0 <= port < 1 << 16:
            raise InputError(
                f"`--port {port}` is not a valid port; use one from 1 to 65535, or 0 for any that is free."
            )
        self.title = title
        self._lock = Lock()
        try:
            super().__init__((_ADDRESS, port), DemoHandler)
        except OSError as error:
            raise InputError(
                f"`--port {port}` cannot be used ({error.strerror}); choose another, or 0 for any that is free."
            ) from error

    @property
    def address(self) -> str:
        return f"http://{_ADDRESS}:{self.server_port}"

    def answer(self, question: str, context: str, *, may_decline: bool) -> Answer:
        # The model runs in one trainer, which serves one evaluation at a time.
        with self._lock:
            # A question of half a window leaves room for the text, whatever the overlap of the windows.
            longest = self.reader.settings.max_question_length or self.reader.settings.max_seq_length // 2
            options = {"max_question_length": longest, "handle_impossible_answer": may_decline}
            return self.reader.answer(question, context, **options)


class DemoHandler(BaseHTTPRequestHandler):
    """Shows the form, and the answer to what was asked with it."""

    server: DemoServer

    def do_GET(self) -> None:
        if self._is_refused():
            return
        if self.path != "/":
            self._send(HTTPStatus.NOT_FOUND, "There is only one page here: /", "text/plain")
            return
        example = self.server.example
        self._send_page(
            {
                "context": example.context,
                "question": next(iter(example.questions), ""),
                "may_decline": self.server.reader.settings.handle_impossible_answer,
            }
        )

    def do_POST(self) -> None:
        if self._is_refused():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or self.headers.get_content_type() != _FORM:
            self._send(HTTPStatus.BAD_REQUEST, f"Send the form of this page, as {_FORM}.", "text/plain")
            return
        if int(length) > _MOST_BYTES:
            self.close_connection = True
            limit = f"{_MOST_BYTES // 1_000_000} MB"
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The text is longer than {limit}.", "text/plain")
            return
        fields = parse_qs(self.rfile.read(int(length)).decode("utf-8", errors="replace"), keep_blank_values=True)
        # A form sends its lines with both characters of their ends.
        asked = {name: fields.get(name, [""])[0].replace("\r\n", "\n") for name in ("question", "context")}
        may_decline = "may_decline" in fields
        example, number = self.server.example, fields.get("example", [""])[0]
        if number.isdecimal() and int(number) < len(example.questions):
            asked = {"question": example.questions[int(number)], "context": example.context}
            may_decline = self.server.reader.settings.handle_impossible_answer
        form = {**asked, "may_decline": may_decline}
        if not all(text.strip() for text in asked.values()):
            self._send_page(form, error="Paste a text and type a question.")
            return
        try:
            answer = self.server.answer(**asked, may_decline=may_decline)
        except InputError as error:
            self._send_page(form, error=str(error))
        else:
            self._send_page(form, answer)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests: questions are private."""

    def _is_refused(self) -> bool:
        """Refuse what other sites may make a browser send; return whether this was such a request.

        A name of theirs that leads here (DNS rebinding) is in ``Host``, a form of theirs in ``Origin``.
        """
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        is_own = urlsplit(f"//{host}").hostname in _OWN_NAMES and origin in (None, f"http://{host}")
        if not is_own:
            self.close_connection = True
            self._send(
                HTTPStatus.FORBIDDEN, f"This page answers this machine only: {self.server.address}", "text/plain"
            )
        return not is_own

    def _send_page(self, form: Mapping[str, object], answer: Answer | None = None, *, error: str = "") -> None:
        form = {**form, "examples": self.server.example.questions}
        page = demo_page(self.server.title, form, answer, error=error)
        self._send(HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK, page, "text/html")

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        content = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def demo_page(title: str, form: Mapping[str, object], answer: Answer | None = None, *, error: str = "") -> str:
    """Return the page: the form as it was sent, and below it the answer or the error."""
    empty = {"question": "", "context": "", "may_decline": False, "examples": ()}
    head = render("demo.html.j2", **{**empty, **form}, error=error)
    sections = [Section("Answer", answer_html(answer) if answer else Markup())]
    lead = "Paste a text and ask. Nothing leaves this machine."
    return render_page(title, lead, head, sections, kicker="Reading comprehension", form_action="self")
