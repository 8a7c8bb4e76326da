"""The reference client: start runs, watch them, steer them, read what they made.

    async with Client(url, token) as towline:
        run = await towline.start("review", {"source": {"path": "src"}})
        async for event in towline.events(run.id):
            print(event.seq, event.type)

Promises what its machine promises (`machine`): no event lost or doubled over reconnects, no command lost or
doubled over retries. Events and commands share one socket, opened with the first of them; everything else is
HTTP. Every call may raise what `failures` lists. Leaves keeping cursors over a restart to the application.
"""

import asyncio
import base64
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

from towline.protocol.client.actions import Answered, Closed, CredentialNeeded, Delta, News, Placed
from towline.protocol.client.commands import Send
from towline.protocol.client.failures import RunNotCompleted, Unreachable, failure_of, problem_in
from towline.protocol.client.http import HttpFace
from towline.protocol.client.link import Link
from towline.protocol.client.machine import ClientMachine
from towline.protocol.client.stream import EventStream
from towline.protocol.client.views import SeenRun
from towline.protocol.errors import problem
from towline.protocol.ids import random_id
from towline.protocol.limits import LIST_DEFAULT, LIST_MAX, UPLOAD_BYTES
from towline.protocol.values import JsonObject

_WAIT_MS: Final = 25_000
_CLOSE_S: Final = 2


class Client:
    """One person or program at one server. An async context manager; use it within one event loop.

    Args:
        url: the server's address, `http://…` or `https://…`.
        token: the credential.
        patience_s: how long a call goes on trying while no server answers.
        new_token: called for a fresh token when the server asks for one.
        name: what this client calls itself.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_s: float = 10.0,
        new_token: Callable[[], Awaitable[str]] | None = None,
        name: str = "towline-python",
    ) -> None:
        self._http = HttpFace(url, token, patience_s=patience_s)
        self._machine = ClientMachine(token, random=random.random, name=name)
        self._link = Link(self._http.url, self._machine, self._tell)
        self._patience_s = patience_s
        self._new_token = new_token
        self._streams: dict[str, EventStream] = {}
        self._answers: dict[tuple[str, str], asyncio.Future[JsonObject]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._has_ended = False
        """Whether the credential has, and nothing goes on without another."""
        self._closed: Closed | None = None
        self._tasks = set[asyncio.Task[None]]()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._http)
        self._spawn(self._link.run(), "towline client").add_done_callback(self._link_is_over)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._machine.stop()
        self._link.wake()
        if tasks := list(self._tasks):
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._stack.aclose()

    # Runs.

    async def start(
        self,
        workflow: str,
        input: Any,  # noqa: A002 - the wire's word
        *,
        key: str | None = None,
        **options: Any,
    ) -> SeenRun:
        """Starts a run, once, however often the call has to be repeated.

        Args:
            workflow: a workflow that some worker has announced.
            input: what it takes, as JSON values.
            key: Idempotency-Key; the same key and input answer the same run. Default: a fresh one.
            options: other members of the request: `id`, `labels`, `headline`, `budget` …
        """
        body = {"workflow": workflow, "input": input, **{k: v for k, v in options.items() if v is not None}}
        headers = {} if "id" in body else {"Idempotency-Key": key or random_id("key")}
        return SeenRun.of(await self._http.call("POST", "/v1/runs", body=body, headers=headers))

    async def upload(self, file: Path, media_type: str = "application/octet-stream") -> JsonObject:
        """Sends a file for a run to come: `{ref, size, sha256, media_type, expires_at}`.

        Name `ref` in the run's input, as `{"upload": ref}`; a run that is not started within a day cannot have it.
        Raises `OSError` for a file that cannot be read.
        """

        def digest() -> str:
            if file.stat().st_size > UPLOAD_BYTES:
                raise problem("too_large", f"{file.name} is larger than 100 MiB.", limit=UPLOAD_BYTES)
            with file.open("rb") as opened:
                return base64.b64encode(hashlib.file_digest(opened, "sha256").digest()).decode()

        headers = {"Content-Type": media_type, "Content-Digest": f"sha-256=:{await asyncio.to_thread(digest)}:"}
        sent: JsonObject = await self._http.send_file("/v1/uploads", file, headers)
        return sent

    async def get(self, run: str) -> SeenRun:
        """The Run as it is now."""
        return SeenRun.of(await self._http.call("GET", _path(run)))

    async def runs(
        self, *, status: str | None = None, workflow: str | None = None, limit: int = LIST_DEFAULT, **filters: str
    ) -> list[SeenRun]:
        """The newest runs that the caller may read, at most `limit`. `status` may name several, with commas."""
        query: dict[str, str | int] = {**filters, "limit": min(limit, LIST_MAX)}
        query |= {k: v for k, v in {"status": status, "workflow": workflow}.items() if v is not None}
        found = list[SeenRun]()
        while True:
            page = await self._http.call("GET", "/v1/runs", query=query)
            found += [SeenRun.of(item) for item in page["items"]]
            if len(found) >= limit or not page.get("next_page"):
                return found[:limit]
            query["page"] = page["next_page"]

    async def inbox(self, *, limit: int = LIST_DEFAULT) -> list[JsonObject]:
        """What waits for the caller across runs, newest first, at most `limit`: questions and blockers."""
        found = list[JsonObject]()
        query: dict[str, str | int] = {"limit": min(limit, LIST_MAX)}
        while True:
            page = await self._http.call("GET", "/v1/inbox", query=query)
            found += page["items"]
            if len(found) >= limit or not page.get("next_page"):
                return found[:limit]
            query["page"] = page["next_page"]

    async def wait(self, run: str) -> SeenRun:
        """The Run once it has ended."""
        seen = await self.get(run)
        while not seen.is_terminal:
            query: dict[str, str | int] = {"after": seen.cursor, "wait_ms": _WAIT_MS}
            seen = SeenRun.of(await self._http.call("GET", _path(run), query=query))
        return seen

    async def result(self, run: str) -> Any:
        """What the run completed with. Raises `RunNotCompleted` if it failed or was cancelled."""
        seen = await self.wait(run)
        if seen.status != "completed":
            raise RunNotCompleted(seen)
        outcome = seen.outcome or {}
        if outcome.get("result") is None and outcome.get("result_ref"):
            return await self._http.call("GET", _path(run, "payloads", outcome["result_ref"]))
        return outcome.get("result")

    # Events.

    def events(
        self,
        run: str,
        after: str = "0",
        *,
        limit: int | None = None,
        on_place: Callable[[Placed], None] | None = None,
        on_live: Callable[[], None] | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> EventStream:
        """The events of `run` after this cursor, until it ends: `async for event in client.events(run)`.

        Args:
            after: a cursor, `0` for all, `latest` for new ones only.
            limit: at most so many stored events; what is left out is told to `on_place`.
            on_place: told when events are missing or the history is another one (`Placed`). Without it that
                is raised, since a gap must not pass unnoticed.
            on_live: called when all stored events have been taken, again after each reconnect.
            on_delta: called with unfinished text.

        Raises `BadCursor`, and `ValueError` if this client follows the run already.
        """
        self._check_open(run)
        self._machine.follow(run, after, limit=limit, deltas=on_delta is not None)
        stream = EventStream(
            run,
            after,
            hold=lambda: self._do(self._machine.hold, run),
            release=lambda: self._do(self._machine.release, run),
            close=lambda: self._unfollow(run),
            on_place=on_place,
            on_live=on_live,
            on_delta=on_delta,
        )
        self._streams[run] = stream
        self._link.wake()
        return stream

    # Commands.

    async def send(
        self,
        run: str,
        type: str,  # noqa: A002 - the wire's word
        data: Mapping[str, Any] | None = None,
        *,
        command_id: str | None = None,
        wait: Literal["applied"] | None = None,
        timeout_s: float = 30.0,
    ) -> JsonObject:
        """Sends a command and returns its receipt; with `wait` the one that tells the outcome, if in time.

        Repeated over reconnects under the same `command_id` (default: a fresh one). Raises `ProblemError` if
        it was refused, and `Unreachable` if no receipt came in time: it may have been accepted then, and
        sending it again with the same id is safe.
        """
        self._check_open(run)
        command_id = command_id or random_id("cmd")
        timeout_ms = None if wait is None else round(timeout_s * 1000)
        answer = asyncio.get_running_loop().create_future()
        self._machine.command(
            Send(run=run, type=type, data=dict(data or {}), command_id=command_id, wait=wait, timeout_ms=timeout_ms)
        )
        self._answers[run, command_id] = answer
        self._link.wake()
        try:
            receipt: JsonObject = await asyncio.wait_for(answer, timeout_s + self._patience_s)
        except TimeoutError:
            raise Unreachable(self._http.url, f"no receipt for the command {command_id}") from None
        finally:
            self._answers.pop((run, command_id), None)
            self._machine.forget(run, command_id)
        if receipt.get("status") == "refused":
            raise problem_in(receipt.get("problem"), 500)
        return receipt

    async def signal(self, run: str, name: str, payload: Any = None) -> JsonObject:
        """Sends the run a signal that its workflow declares."""
        return await self.send(run, "signal", {"name": name, "payload": payload})

    async def approve(
        self, run: str, request: str, digest: str, *, comment: str | None = None, answers: Any = None
    ) -> JsonObject:
        """Approves what `digest` stands for: the proposal as it was shown."""
        return await self._decide("approve", run, request, digest, comment, answers)

    async def reject(
        self, run: str, request: str, digest: str, *, comment: str | None = None, answers: Any = None
    ) -> JsonObject:
        """Rejects it."""
        return await self._decide("reject", run, request, digest, comment, answers)

    async def _decide(
        self, decision: str, run: str, request: str, digest: str, comment: str | None, answers: Any
    ) -> JsonObject:
        data = {"request": request, "digest": digest, "comment": comment, "answers": answers}
        return await self.send(run, decision, {k: v for k, v in data.items() if v is not None})

    async def cancel(self, run: str, *, reason: str | None = None, grace_ms: int | None = None) -> SeenRun:
        """Asks the run to stop; the Run as it then is. Idempotent in every state."""
        data = {"reason": reason, "grace_ms": grace_ms, "command_id": random_id("cmd")}
        body = {k: v for k, v in data.items() if v is not None}
        return SeenRun.of(await self._http.call("POST", _path(run, "cancel"), body=body))

    # What a run holds.

    async def request(self, run: str, request: str) -> JsonObject:
        """One request of a run to people, open or resolved."""
        found: JsonObject = await self._http.call("GET", _path(run, "requests", request))
        return found

    async def payload(self, run: str, ref: str) -> Any:
        """A value that was too large for its event."""
        return await self._http.call("GET", _path(run, "payloads", ref))

    async def artifacts(self, run: str) -> list[JsonObject]:
        """What the run has made: `id`, `name`, `media_type`, `size`, `sha256` …"""
        found, query = list[JsonObject](), dict[str, str | int]()
        while True:
            page = await self._http.call("GET", _path(run, "artifacts"), query=query)
            found += page["items"]
            if not page.get("next_page"):
                return found
            query["page"] = page["next_page"]

    async def artifact(self, run: str, artifact: str) -> bytes:
        """The bytes of one artifact."""
        return await self._http.fetch("GET", _path(run, "artifacts", artifact))

    # The link.

    def use_token(self, token: str) -> None:
        """A fresh credential of the same subject, for what follows."""
        self._has_ended = False
        self._http.token = token
        self._do(self._machine.use_token, token)

    def drop_link(self) -> None:
        """Cuts the socket as a network would; the machine comes back by itself. For demonstrations and tests."""
        self._link.drop()

    def _do(self, order: Callable[[str], None], argument: str) -> None:
        order(argument)
        self._link.wake()

    def _unfollow(self, run: str) -> None:
        if self._streams.pop(run, None) is not None:
            self._do(self._machine.unfollow, run)

    def _check_open(self, run: str) -> None:
        if self._closed is not None:
            raise failure_of(run, self._closed)

    def _tell(self, news: News) -> None:
        match news:
            case Answered(run=run, command_id=command_id, receipt=receipt, is_final=True):
                answer = self._answers.get((run, command_id))
                if answer is not None and not answer.done():
                    answer.set_result(receipt)
            case Answered():
                pass
            case CredentialNeeded(deadline):
                self._has_ended = self._has_ended or deadline is None
                if self._new_token is not None:
                    # One at a time: a socket that is new asks for what the one before it has asked for already.
                    if self._renewing is None or self._renewing.done():
                        self._renewing = self._spawn(self._renew(self._new_token), "towline client credential")
                elif deadline is None:
                    self._fail_all(lambda _: problem("unauthenticated", "The credential has ended; sign in again."))
            case Closed():
                self._closed = news
                self._fail_all(lambda run: failure_of(run, news))
            case _:
                if (stream := self._streams.get(news.run)) is not None:
                    stream.receive(news)

    def _fail_all(self, failure: Callable[[str], Exception]) -> None:
        for stream in list(self._streams.values()):
            stream.receive_failure(failure(stream.run))
        for (run, _), answer in self._answers.items():
            if not answer.done():
                answer.set_exception(failure(run))

    async def _renew(self, new_token: Callable[[], Awaitable[str]]) -> None:
        try:
            self.use_token(await new_token())
        except Exception as error:
            if not self._has_ended:
                return  # what is held is still good; at its end it is asked for again
            why = str(error) or type(error).__name__
            self._fail_all(lambda _: problem("unauthenticated", f"No new credential could be had: {why}"))

    def _link_is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # a fault of ours: nobody may hang
            self._tell(Closed(1006, f"the client failed: {error!r}"))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _path(run: str, *parts: str) -> str:
    return "/".join(["/v1/runs", *(quote(part, safe="") for part in (run, *parts))])
