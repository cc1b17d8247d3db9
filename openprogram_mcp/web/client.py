"""The command line's way to a running worker: blocking HTTP over one connection, light to import.

The standard library's client, because every command pays for the import: httpx2 takes four times as long to import, and
nothing here needs a pool, a proxy or TLS.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from attrs import frozen

from ..errors import OpenProgramMCPError, WorkerUnreachable
from .worker_file import WorkerInfo

__all__ = ["ProblemAnswer", "WorkerClient", "WorkerGone"]

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0


class ProblemAnswer(OpenProgramMCPError):
    """The worker answered with a problem document; ``problem`` is it, and ``to_problem`` gives it back unchanged."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(
            str(problem.get("detail") or problem.get("title") or "The worker refused the request"),
            remedy=problem.get("remedy"),
            server=problem.get("server"),
            path=problem.get("path"),
        )
        self.problem = dict(problem)

    def to_problem(self) -> dict[str, Any]:
        """The document as the worker sent it."""
        return self.problem


class WorkerGone(WorkerUnreachable):
    """Nobody listens at the worker's address: its file was left behind, or it is just ending."""


@frozen
class WorkerClient:
    """Asks a worker.

    Args:
        info: The worker, as its file tells it.
    """

    info: WorkerInfo

    def get(self, *path: str, **query: str | int | None) -> Any:
        """``GET /api/mcp/…``; the path's parts are percent-encoded.

        Raises:
            ProblemAnswer: The worker said no.
            WorkerGone: Nobody listens there.
            WorkerUnreachable: It did not answer, or not with JSON.
        """
        given = {name: value for name, value in query.items() if value is not None}
        with closing(self._connect()) as connection:
            response = self._request(connection, "GET", _target(path, given), None, {}, _ANSWER_SECONDS)
            return self._json(response)

    def get_with_revision(self, *path: str) -> tuple[Any, str | None]:
        """``GET /api/mcp/…``, and the revision of the configuration that the answer tells of, where it has one.

        An edit that is given this revision is made only if nobody else has changed the configuration since.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``.
        """
        with closing(self._connect()) as connection:
            response = self._request(connection, "GET", _target(path, {}), None, {}, _ANSWER_SECONDS)
            tag = response.headers.get("ETag")
            return self._json(response), None if tag is None else tag.strip('"')

    def post(self, *path: str, body: Any = None, force: bool = False, patient: bool = False, **query: str) -> Any:
        """``POST /api/mcp/…`` with a JSON body.

        Args:
            path: The parts of the path.
            body: The body.
            force: Save it though it does not come up.
            query: The query.
            patient: Wait as long as the worker takes: it has limits of its own.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``.
        """
        return self._change("POST", path, body, query, force=force, patient=patient)

    def patch(
        self, *path: str, body: Any, force: bool = False, revision: str | None = None, patient: bool = False
    ) -> Any:
        """``PATCH /api/mcp/…``: a change of what is there.

        Args:
            path: The parts of the path.
            body: What changes.
            force: Save it though it does not come up.
            revision: Only if the configuration is at this revision.
            patient: Wait as long as the worker takes.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``.
        """
        return self._change("PATCH", path, body, force=force, revision=revision, patient=patient)

    def put(self, *path: str, body: Any, revision: str | None = None) -> Any:
        """``PUT /api/mcp/…``: this in the place of what is there; arguments and errors as ``patch``."""
        return self._change("PUT", path, body, revision=revision)

    def delete(self, *path: str, revision: str | None = None, patient: bool = False) -> None:
        """``DELETE /api/mcp/…``; arguments and errors as ``patch``."""
        self._change("DELETE", path, None, revision=revision, patient=patient)

    def _change(
        self,
        method: str,
        path: tuple[str, ...],
        body: Any,
        query: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        revision: str | None = None,
        patient: bool = False,
    ) -> Any:
        target = _target(path, {**(query or {}), **({"force": "true"} if force else {})})
        headers = {} if revision is None else {"If-Match": f'"{revision}"'}
        with closing(self._connect()) as connection:
            response = self._request(connection, method, target, body, headers, None if patient else _ANSWER_SECONDS)
            return self._json(response)

    def follow(self, *path: str, since: int | None = None) -> Iterator[tuple[str, Any]]:
        """``GET /api/mcp/…`` as a stream that ends with the worker, each event as its type and its data.

        The worker has begun to collect events for it when this returns.

        Args:
            path: The parts of the path.
            since: Begin after the event of this number; ``None`` begins with what comes next.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``; the last one also while it is read.
        """
        headers = {"Accept": "text/event-stream", **({} if since is None else {"Last-Event-ID": str(since)})}
        connection = self._connect()
        try:
            response = self._request(connection, "GET", _target(path, {}), None, headers, None)
            if response.status >= 400:
                self._json(response)
        except BaseException:
            connection.close()
            raise
        return self._followed(connection, response)

    def _followed(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> Iterator[tuple[str, Any]]:
        with closing(connection):
            yield from self._events(response)

    def stream(self, *path: str, body: Any = None) -> Iterator[tuple[str, Any]]:
        """``POST /api/mcp/…`` and yield the events of the answer, each as its type and its data.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``, on the first step.
        """
        with closing(self._connect()) as connection:
            response = self._request(connection, "POST", _target(path, {}), body, {"Accept": "text/event-stream"}, None)
            if response.headers.get_content_type() != "text/event-stream":
                yield "result", self._json(response)
            else:
                yield from self._events(response)

    def _events(self, response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
        event, data = "message", list[str]()
        for line in self._lines(response):
            if not line:
                if data:
                    yield event, json.loads("\n".join(data))
                event, data = "message", []
            elif line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[str]:
        try:
            while line := response.readline():
                yield line.decode().rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._lost() from error

    def _connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.info.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
        except ConnectionRefusedError as error:
            raise WorkerGone(f"No worker listens at {self.info.url}") from error
        except OSError as error:
            raise self._silent() from error
        return connection

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: Any,
        headers: Mapping[str, str],
        limit: float | None,
    ) -> http.client.HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.info.token}", "Accept": "application/json", **headers}
        if content is not None:
            sent["Content-Type"] = "application/json"
        if connection.sock is not None:
            connection.sock.settimeout(limit)
        try:
            # A body that is too large is answered before all of it was taken.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body=content, headers=sent)
            return connection.getresponse()
        except TimeoutError as error:
            raise self._silent() from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost() from error

    def _json(self, response: http.client.HTTPResponse) -> Any:
        try:
            content = response.read()
        except TimeoutError as error:
            raise self._silent() from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost() from error
        try:
            value = json.loads(content) if content else None
        except ValueError:
            value = None
            if response.status < 400:
                raise WorkerUnreachable(f"What listens at {self.info.url} is not a worker") from None
        if response.status >= 400:
            raise ProblemAnswer(value if isinstance(value, dict) else {"detail": f"HTTP {response.status}"})
        return value

    def _silent(self) -> WorkerUnreachable:
        return WorkerUnreachable(
            f"The worker (process {self.info.pid}) does not answer at {self.info.url}",
            remedy=f"See what it is doing, or end it: kill {self.info.pid}",
        )

    def _lost(self) -> WorkerUnreachable:
        return WorkerUnreachable("The worker ended before it had answered", remedy="Look at its log and start it again")


def _target(path: tuple[str, ...], query: Mapping[str, str | int]) -> str:
    parts = "/".join(quote(part, safe="") for part in path)
    return f"/api/mcp/{parts}?{urlencode(query)}" if query else f"/api/mcp/{parts}"
