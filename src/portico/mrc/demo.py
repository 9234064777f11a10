"""A page on this machine on which a trained reader answers questions."""

import asyncio
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from typing_extensions import override
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from portico.checkpoint.manifest import newest_complete
from portico.errors import InputError, explaining_panics, naming
from portico.mrc.inference import Answer, Reader, answer_html, took_too_long
from portico.mrc.report.run_page import REPORT_RECORD
from portico.report.page import Section, render, render_page
from portico.trust.disk import read_text

_ADDRESS = "127.0.0.1"
# An answer is ended between batches: a batch of one window is the shortest, and about as fast on a CPU.
_WINDOWS_OF_A_BATCH = 1
_SECONDS_TO_NOTICE = 0.2  # that a browser has left, or that the demo ends
_SECONDS_BEYOND = 1.0  # the limit, until the page says so although the answer has not ended
_FORM = "application/x-www-form-urlencoded"
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    # Each connection serves one request, so that one limit of time holds for all of it.
    "Connection": "close",
}


class Limits(NamedTuple):
    """What one question and all waiting questions may take; the page names the first four."""

    context: int = 100_000
    """Characters of the text, about 15,000 words."""
    question: int = 2_000
    """Characters of the question."""
    seconds: float = 30.0
    """Time for one answer."""
    waiting: int = 8
    """Questions that wait for the one being answered."""
    seconds_to_send: float = 10.0
    """Time for a browser to send its request, and to read the answer."""
    connections: int = 64

    @property
    def bytes_of_form(self) -> int:
        # The longest character of a form is a code point of 4 bytes, each written as %XX.
        return 12 * (self.context + self.question) + 1_000


LIMITS = Limits()


class DemoExample(NamedTuple):
    """A text, and questions about it that the run answered or declined correctly in its evaluation."""

    context: str = ""
    questions: Sequence[str] = ()
    declined: Sequence[str] = ()
    score: str = ""
    """How many questions of the evaluation were correct, in a sentence."""

    @property
    def all_questions(self) -> list[str]:
        return [*self.questions, *self.declined]


NO_EXAMPLE = DemoExample()


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
        with open_socket(port) as listener:
            demo = Demo(Path(run).name, _load(run, device), read_example(run), port=listener.getsockname()[1])
            print(f"{run} answers at {demo.address} (Ctrl-C ends it)", flush=True)
            demo.server().run(sockets=[listener])
    except KeyboardInterrupt:
        print()


def open_socket(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine, 0 for any that is free."""
    if not 0 <= port < 1 << 16:
        raise InputError(f"`--port {port}` is not a valid port; use one from 1 to 65535, or 0 for any that is free.")
    try:
        return socket.create_server((_ADDRESS, port))
    except OSError as error:
        raise InputError(
            f"`--port {port}` cannot be used ({os.strerror(error.errno or 0)}); choose another, or 0 for any that is "
            "free."
        ) from error


def _load(run: str, device: str) -> Reader:
    folder = Path(run)
    if folder.is_dir() and not (folder / "config.json").is_file():
        checkpoint = newest_complete(folder)
        if checkpoint is not None and (checkpoint / "config.json").is_file():
            instead = f"name its last checkpoint, {checkpoint}"
        elif checkpoint is None and not (folder / "model.safetensors").is_file():
            instead = "name the folder of a finished run"
        else:  # a plain `torch.nn.Module`, which only its class can load
            instead = "the demo loads models of transformers only, and this run trained another one: name another run"
        raise InputError(
            f"`RUN={run}` contains no model (config.json, which a run writes last, is missing); {instead}."
        )
    if not folder.exists() and folder.parent.name and folder.parent.is_dir():
        # Otherwise `outputs/typo` would be looked for on the hub.
        raise InputError(f"`RUN={run}` does not exist; name the folder of a finished run, or a reader on the hub.")
    with naming({"model": "RUN", "device": "--device"}):
        return Reader(run, device=device, batch_size=_WINDOWS_OF_A_BATCH)


def read_example(run: str | Path) -> DemoExample:
    """Return the passage and questions that ``report.json`` of the run shows, or none if it is missing or has none."""
    record = Path(run, REPORT_RECORD)
    if not record.is_file():  # from a pipe, reading would never end
        return NO_EXAMPLE
    try:
        shown = json.loads(read_text(record))["example"]
        demo = DemoExample(
            shown.get("context", ""), shown.get("questions", []), shown.get("declined", []), shown.get("score", "")
        )
        are_lists = isinstance(demo.questions, list) and isinstance(demo.declined, list)
        is_valid = are_lists and all(isinstance(text, str) for text in [demo.context, demo.score, *demo.all_questions])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return NO_EXAMPLE
    return demo if is_valid else NO_EXAMPLE


class Demo:
    """The page of one reader, for the browsers of this machine.

    Questions are answered one after the other, short ones between the batches of long ones; what exceeds the limits is
    refused with a sentence on the page.

    Args:
        title: Heading of the page.
        reader: Answers the questions.
        example: What the page opens with.
        port: Port of the page.
        limits: Limits of a question and of the queue.
    """

    def __init__(
        self, title: str, reader: Reader, example: DemoExample, *, port: int, limits: Limits = LIMITS
    ) -> None:
        self.title = title
        self.reader = reader
        self.example = example
        self.limits = limits
        self.address = f"http://{_ADDRESS}:{port}"
        self._hosts = {f"{name}:{port}" for name in (_ADDRESS, "localhost")}
        if port == 80:  # which browsers leave out
            self._hosts |= {_ADDRESS, "localhost"}
        self._num_waiting = 0
        # Each reader has a trainer, which serves one evaluation at a time.
        self._turns = Turns()
        # By the number of longer questions that pause meanwhile.
        self._readers = [reader]

    def server(self) -> Server:
        """Return the server, which takes over a listening socket."""
        route = Route("/", self._respond, methods=["GET", "POST"])

        class Protocol(PunctualProtocol):
            limits = self.limits

        config = Config(
            Starlette(routes=[route], exception_handlers={404: _not_found, Exception: _handle_failure}),
            http=Protocol,
            ws="none",
            lifespan="off",
            headers=list(_HEADERS.items()),
            server_header=False,
            # Questions are private, so that requests are not logged.
            access_log=False,
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._server = Server(config)
        return self._server

    async def _respond(self, request: Request) -> Response:
        # What other sites may make a browser send: a name of theirs that leads here (DNS rebinding) is in `Host`, a
        # form of theirs in `Origin`.
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if host not in self._hosts or origin not in (None, f"http://{host}"):
            text = f"This page answers this machine only: {self.address}"
            return PlainTextResponse(text, HTTPStatus.FORBIDDEN)
        if request.method != "POST":
            return self._page(self._example_form(next(iter(self.example.all_questions), "")))
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _FORM:
            return PlainTextResponse(f"Send the form of this page, as {_FORM}.", HTTPStatus.BAD_REQUEST)
        try:
            async with asyncio.timeout(self.limits.seconds_to_send):
                body = await self._read(request)
            fields = parse_qs(body.decode("utf-8", errors="replace"), keep_blank_values=True, max_num_fields=10)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("The form did not arrive in time.", HTTPStatus.REQUEST_TIMEOUT)
        except ValueError:
            return PlainTextResponse("This is not the form of this page.", HTTPStatus.BAD_REQUEST)
        return await self._answer(request, self._form(fields))

    async def _read(self, request: Request) -> bytes:
        # Starlette has a limit of its own since 1.10.
        body = bytearray()
        size = int(request.headers.get("Content-Length", 0))  # h11 has refused what is not a number
        if size <= self.limits.bytes_of_form:
            async for part in request.stream():
                body += part
                size = max(size, len(body))
                if size > self.limits.bytes_of_form:
                    break
        if size > self.limits.bytes_of_form:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return bytes(body)

    def _form(self, fields: Mapping[str, Sequence[str]]) -> dict[str, object]:
        examples = {str(number): question for number, question in enumerate(self.example.all_questions)}
        chosen = examples.get(fields.get("example", [""])[0])
        if chosen is not None:
            return self._example_form(chosen)
        # A form sends its lines with both characters of their ends.
        asked = {name: fields.get(name, [""])[0].replace("\r\n", "\n") for name in ("question", "context")}
        return {**asked, "may_decline": "may_decline" in fields}

    def _example_form(self, question: str) -> dict[str, object]:
        may_decline = self.reader.settings.handle_impossible_answer
        return {"context": self.example.context, "question": question, "may_decline": may_decline}

    async def _answer(self, request: Request, form: Mapping[str, object]) -> Response:
        limits = self.limits
        question, context = str(form["question"]), str(form["context"])
        if not question.strip() or not context.strip():
            return self._page(form, error="Paste a text and type a question.")
        for name, text, most in (("text", context, limits.context), ("question", question, limits.question)):
            if len(text) > most:
                error = f"The {name} has {len(text):,} characters; at most {most:,} are read."
                return self._page(form, error=error, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self._num_waiting > limits.waiting:
            error = f"{limits.waiting} questions are waiting already; ask again in a moment."
            return self._page(form, error=error, status=HTTPStatus.SERVICE_UNAVAILABLE)
        self._num_waiting += 1
        turn = Turn(len(context) + len(question), partial(self._read_answer, form))
        self._turns.begin(turn)
        answer = asyncio.wrap_future(turn.answer)
        try:
            while not (await asyncio.wait({answer}, timeout=_SECONDS_TO_NOTICE))[0]:
                if self._server.should_exit or await request.is_disconnected():
                    return PlainTextResponse("The demo has ended.", HTTPStatus.SERVICE_UNAVAILABLE)
                if turn.seconds > limits.seconds + _SECONDS_BEYOND:
                    raise took_too_long(limits.seconds)
            return self._page(form, answer.result())
        except InputError as error:
            return self._page(form, error=str(error))
        finally:
            self._num_waiting -= 1
            answer.cancel()
            turn.cancelled.set()

    def _read_answer(self, form: Mapping[str, object], turn: "Turn", pause: Callable[[], None]) -> Answer:
        """Return an answer, in a thread; between its batches it gives way to shorter questions."""
        while len(self._readers) <= turn.depth:
            self._readers.append(self.reader.sharing_model())
        # A question of half a window leaves room for the text, whatever the overlap of the windows.
        longest = self.reader.settings.max_question_length or self.reader.settings.max_seq_length // 2
        with explaining_panics():
            return self._readers[turn.depth].answer(
                str(form["question"]),
                str(form["context"]),
                max_question_length=longest,
                handle_impossible_answer=bool(form["may_decline"]),
                max_seconds=self.limits.seconds,
                cancelled=turn.cancelled,
                between_batches=pause,
            )

    def _page(
        self,
        form: Mapping[str, object],
        answer: Answer | None = None,
        *,
        error: str = "",
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
    ) -> Response:
        page = demo_page(self.title, form, answer, error=error, example=self.example, limits=self.limits)
        # Characters that UTF-8 lacks, single surrogates, become question marks.
        return HTMLResponse(page.encode("utf-8", errors="replace"), status if error else HTTPStatus.OK)


_MUCH_LONGER = 4
_MOST_DELAYS = 3
_DEEPEST = 3  # a question of 100,000 characters gives way to one of 25,000, and that to one of 6,000


@dataclass(eq=False)
class Turn:
    """A question that waits to be answered, or is being answered.

    Args:
        size: Characters.
        read: Returns the answer; it is given this turn, and what to call between two batches.
    """

    size: int
    read: "Callable[[Turn, Callable[[], None]], Answer]"
    depth: int = 0
    """How many longer questions pause for this one."""
    num_delays: int = 0
    """How often shorter questions came first."""
    started: float | None = None
    """When its answer was begun, by ``time.monotonic``."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    answer: "Future[Answer]" = field(default_factory=Future)

    @property
    def rank(self) -> tuple[bool, int]:
        # Those that have waited long enough are the next, in the order in which they came.
        return (True, self.size) if self.num_delays < _MOST_DELAYS else (False, 0)

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started


class Turns:
    """Which question is answered next: the shortest, so that a long text of one client does not delay all others.

    One is answered at a time, in a thread. Between two of its batches it pauses for one that is much shorter.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_answering = False
        self._waiting: list[Turn] = []

    def begin(self, turn: Turn) -> None:
        """Answer a question now, or when its turn comes."""
        with self._lock:
            self._waiting.append(turn)
            is_first, self._is_answering = not self._is_answering, True
        if is_first:
            # Nobody waits for it at the end of the process: a tokenizer cannot be interrupted.
            threading.Thread(target=self._answer_all, daemon=True, name="portico-answers").start()

    def _answer_all(self) -> None:
        while (turn := self._next()) is not None:
            self._answer(turn)

    def _next(self) -> Turn | None:
        with self._lock:
            turn = min(self._waiting, key=lambda turn: turn.rank, default=None)
            self._is_answering = turn is not None
            if turn is not None:
                self._waiting.remove(turn)
                for other in self._waiting:
                    other.num_delays += other.size > turn.size
            return turn

    def _answer(self, turn: Turn) -> None:
        if not turn.answer.set_running_or_notify_cancel():
            return
        turn.started = time.monotonic()
        try:
            turn.answer.set_result(turn.read(turn, partial(self._pause, turn)))
        except BaseException as error:
            turn.answer.set_exception(error)

    def _pause(self, turn: Turn) -> None:
        """Answer the shortest question that waits, if it is much shorter than one that is being answered."""
        with self._lock:
            shorter = [other for other in self._waiting if _MUCH_LONGER * other.size < turn.size]
            if not shorter or turn.depth == _DEEPEST:
                return
            other = min(shorter, key=lambda turn: turn.size)
            self._waiting.remove(other)
        other.depth = turn.depth + 1
        self._answer(other)


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is only one page here: /", HTTPStatus.NOT_FOUND)


async def _handle_failure(request: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    return PlainTextResponse("An error occurred; the terminal shows it.", HTTPStatus.INTERNAL_SERVER_ERROR)


class PunctualProtocol(H11Protocol):
    """Closes connections that take too long to send a request or to read its answer, which uvicorn has no limit for.

    When there are too many connections, the oldest of these makes room, so that they keep nobody from asking.
    """

    limits = LIMITS
    opened = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self.connections) >= self.limits.connections:
            known = [connection for connection in self.connections if isinstance(connection, PunctualProtocol)]
            idle = [connection for connection in known if connection.is_idle and not connection.transport.is_closing()]
            if idle:
                min(idle, key=lambda connection: connection.opened).transport.abort()
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._watch()

    @property
    def is_idle(self) -> bool:
        """Whether the connection waits for its browser."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def _watch(self) -> None:
        self.loop.call_later(self.limits.seconds_to_send, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.is_idle:
            self.transport.abort()
        else:
            self._watch()


def demo_page(
    title: str, form: Mapping[str, object], answer: Answer | None, *, error: str, example: DemoExample, limits: Limits
) -> str:
    """Return the page: the form as it was sent, and below it the answer or the error."""
    head = render("demo.html.j2", **form, error=error, example=example, limits=limits)
    sections = [Section("Answer", answer_html(answer) if answer else Markup())]
    lead = "Paste a text and ask. Nothing leaves this machine."
    return render_page(title, lead, head, sections, kicker="Reading comprehension", form_action="self")
