"""A page on this machine on which a trained reader answers questions."""

import asyncio
import json
import os
import socket
import threading
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from typing_extensions import override
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from portico.checkpoint.manifest import newest_complete
from portico.errors import InputError, explaining_panics, naming
from portico.mrc.inference import Answer, Reader, answer_html
from portico.mrc.report.run_page import REPORT_RECORD
from portico.report.page import Section, render, render_page
from portico.trust.disk import read_text

_ADDRESS = "127.0.0.1"
# An answer is ended between batches: a batch of one window is the shortest, and about as fast on a CPU.
_WINDOWS_OF_A_BATCH = 1
_SECONDS_TO_NOTICE = 0.2  # that a browser has left, or that the demo ends
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
        with listening_socket(port) as listener:
            demo = Demo(Path(run).name, _load(run, device), read_example(run), port=listener.getsockname()[1])
            print(f"{run} answers at {demo.address} (Ctrl-C ends it)", flush=True)
            demo.server().run(sockets=[listener])
    except KeyboardInterrupt:
        print()


def listening_socket(port: int) -> socket.socket:
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
        one = DemoExample(
            shown.get("context", ""), shown.get("questions", []), shown.get("declined", []), shown.get("score", "")
        )
        are_lists = isinstance(one.questions, list) and isinstance(one.declined, list)
        is_usable = are_lists and all(isinstance(text, str) for text in [one.context, one.score, *one.all_questions])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return NO_EXAMPLE
    return one if is_usable else NO_EXAMPLE


class Demo:
    """The page of one reader, for the browsers of this machine.

    Questions are answered one after the other; what exceeds the limits is refused with a sentence on the page.

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
        # The model runs in one trainer, which serves one evaluation at a time.
        self._turns = Turns()
        self._is_ending = False

    def server(self) -> Server:
        """Return the server, which takes over a listening socket."""
        route = Route("/", self._respond, methods=["GET", "POST"])

        class Protocol(PunctualProtocol):
            limits = self.limits

        class EndingServer(Server):
            demo = self

            @override
            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                self.demo._is_ending = True
                await super().shutdown(sockets)

        config = Config(
            Starlette(routes=[route], exception_handlers={404: _not_found, Exception: _failed}),
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
        return EndingServer(config)

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
        turn = Turn(len(context) + len(question))
        try:
            while (answer := await self._at_its_turn(turn, request, form)) is None:
                if await self._is_over(request):
                    return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
        except InputError as error:
            if self._is_ending:
                return PlainTextResponse("The demo has ended.", HTTPStatus.SERVICE_UNAVAILABLE)
            return self._page(form, error=str(error))
        finally:
            self._num_waiting -= 1
        return self._page(form, answer)

    async def _is_over(self, request: Request) -> bool:
        return self._is_ending or await request.is_disconnected()

    async def _at_its_turn(self, turn: "Turn", request: Request, form: Mapping[str, object]) -> Answer | None:
        """Return an answer; None if nobody waits for it, or a shorter question came first."""
        async with self._turns.of(turn):
            if await self._is_over(request):
                return None
            try:
                with explaining_panics():
                    return await self._answered(turn, request, form)
            except InputError:
                if turn.gives_way and not await self._is_over(request):
                    return None
                raise

    async def _answered(self, turn: "Turn", request: Request, form: Mapping[str, object]) -> Answer:
        """Return an answer, which is cancelled when nobody waits for it any more, or it gives way to another."""
        cancelled = threading.Event()

        async def watch() -> None:
            while not (turn.gives_way or await self._is_over(request)):
                await asyncio.sleep(_SECONDS_TO_NOTICE)
            cancelled.set()

        watching = asyncio.create_task(watch())
        # A question of half a window leaves room for the text, whatever the overlap of the windows.
        longest = self.reader.settings.max_question_length or self.reader.settings.max_seq_length // 2
        try:
            return await run_in_threadpool(
                self.reader.answer,
                str(form["question"]),
                str(form["context"]),
                max_question_length=longest,
                handle_impossible_answer=bool(form["may_decline"]),
                max_seconds=self.limits.seconds,
                cancelled=cancelled,
            )
        finally:
            watching.cancel()

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


@dataclass(eq=False)
class Turn:
    """A question that waits to be answered, or is being answered."""

    size: int
    """Characters."""
    gives_way: bool = False
    """Whether it is to end for a much shorter question, and to begin again later."""
    num_delays: int = 0
    """How often shorter questions came first."""
    comes: "asyncio.Future[None] | None" = None
    """Set when it may be answered."""

    @property
    def rank(self) -> tuple[bool, int]:
        # Those that have waited long enough are the next, in the order in which they came.
        return (True, self.size) if self.num_delays < _MOST_DELAYS else (False, 0)


class Turns:
    """Which question is answered next: the shortest, so that a long text of one client does not delay all others.

    A question gives way to a much shorter one even while it is being answered, three times at most.
    """

    def __init__(self) -> None:
        self._current: Turn | None = None
        self._waiting: list[Turn] = []

    @asynccontextmanager
    async def of(self, turn: Turn) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block."""
        turn.gives_way = False
        if self._current is not None:
            if self._current.size > _MUCH_LONGER * turn.size and self._current.num_delays < _MOST_DELAYS:
                self._current.gives_way = True
            turn.comes = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn.comes
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._pass_on()
                raise
        self._current = turn
        try:
            yield
        finally:
            turn.num_delays += turn.gives_way
            self._pass_on()

    def _pass_on(self) -> None:
        # The next is the current one from now on, so that nobody comes between.
        self._current = min(self._waiting, key=lambda turn: turn.rank, default=None)
        if self._current is None:
            return
        self._waiting.remove(self._current)
        for turn in self._waiting:
            turn.num_delays += turn.size > self._current.size
        assert self._current.comes is not None
        self._current.comes.set_result(None)


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is only one page here: /", HTTPStatus.NOT_FOUND)


async def _failed(request: Request, error: Exception) -> Response:
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
            known = [one for one in self.connections if isinstance(one, PunctualProtocol)]
            idle = [one for one in known if one.is_idle and not one.transport.is_closing()]
            if idle:
                min(idle, key=lambda one: one.opened).transport.abort()
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
    title: str,
    form: Mapping[str, object],
    answer: Answer | None = None,
    *,
    error: str = "",
    example: DemoExample = NO_EXAMPLE,
    limits: Limits = LIMITS,
) -> str:
    """Return the page: the form as it was sent, and below it the answer or the error."""
    empty = {"question": "", "context": "", "may_decline": False}
    head = render("demo.html.j2", **{**empty, **form}, error=error, example=example, limits=limits)
    sections = [Section("Answer", answer_html(answer) if answer else Markup())]
    lead = "Paste a text and ask. Nothing leaves this machine."
    return render_page(title, lead, head, sections, kicker="Reading comprehension", form_action="self")
