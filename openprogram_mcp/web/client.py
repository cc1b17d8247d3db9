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

    def post(self, *path: str, body: Any = None, patient: bool = False, **query: str) -> Any:
        """``POST /api/mcp/…`` with a JSON body.

        Args:
            path: The parts of the path.
            body: The body.
            query: The query.
            patient: Wait as long as the worker takes: it has limits of its own.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``.
        """
        limit = None if patient else _ANSWER_SECONDS
        with closing(self._connect()) as connection:
            return self._json(self._request(connection, "POST", _target(path, query), body, {}, limit))

    def delete(self, *path: str) -> None:
        """``DELETE /api/mcp/…``.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``.
        """
        with closing(self._connect()) as connection:
            self._json(self._request(connection, "DELETE", _target(path, {}), None, {}, _ANSWER_SECONDS))

    def stream(self, *path: str, body: Any = None) -> Iterator[tuple[str, Any]]:
        """``POST /api/mcp/…`` and yield the events of the answer, each as its type and its data.

        Raises:
            ProblemAnswer, WorkerGone, WorkerUnreachable: As ``get``, on the first step.
        """
        with closing(self._connect()) as connection:
            response = self._request(connection, "POST", _target(path, {}), body, {"Accept": "text/event-stream"}, None)
            if response.headers.get_content_type() != "text/event-stream":
                yield "result", self._json(response)
                return
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
