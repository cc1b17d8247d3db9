"""Asking an authorization server: one request, one bounded answer, and what went wrong in words.

Owns what is said about failures, so that nothing of a token, a code or a secret can be in it: texts of a server are
masked of whatever the request carried, cut, and kept to one line. An answer of HTML is never quoted.

Redirects are followed for what is only read, and within one origin; a request with credentials in it is never sent on.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import trio
from attrs import define, field, frozen

from ..errors import ServerFailed
from ..masking import Masker

__all__ = ["Answer", "Asker", "SignInFailed", "asking", "host_of", "one_line", "safe_to_send", "unreachable_words"]

_ANSWER_SECONDS: Final = 20.0
_LONGEST_ANSWER: Final = 1024 * 1024
_REDIRECTS: Final = 5
_LONGEST_TEXT: Final = 300


class SignInFailed(ServerFailed):
    """A sign-in, or the renewal of one, did not come to its end.

    Args:
        error: What OAuth calls it (``invalid_grant``), where the authorization server said so.
        registration: What is missing is a client registration.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        server: str | None = None,
        error: str | None = None,
        transient: bool = False,
        registration: bool = False,
    ) -> None:
        super().__init__(message, phase="connect", remedy=remedy, server=server, transient=transient)
        self.error = error
        self.registration = registration


@frozen
class Answer:
    """What came back: the status, the headers and the body, which is within a megabyte."""

    status: int
    headers: httpx2.Headers
    body: bytes = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return 200 <= self.status < 300

    def json(self) -> dict[str, Any] | None:
        """The object in the body; ``None`` when there is none, as in a page of HTML."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


@define
class Asker:
    """Sends requests to authorization servers, over the client that the server itself is reached with."""

    _client: httpx2.AsyncClient

    async def get(self, url: str) -> Answer:
        """Read a document.

        Raises:
            SignInFailed: Nobody answered in time; it is transient.
        """
        headers = {"accept": "application/json"}
        request = httpx2.Request("GET", url, headers=headers)
        answer = await self._send(request)
        for _ in range(_REDIRECTS):
            location = answer.headers.get("location")
            if not 300 <= answer.status < 400 or location is None:
                break
            try:
                following = request.url.join(location)
            except httpx2.InvalidURL:
                break
            if _origin(following) != _origin(request.url):
                break
            request = httpx2.Request("GET", following, headers=headers)
            answer = await self._send(request)
        return answer

    async def post(
        self,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Post a form, or a JSON document.

        Raises:
            SignInFailed: Nobody answered in time (transient), or the address is not one to send secrets to.
        """
        if not safe_to_send(url):
            raise SignInFailed(
                f"{host_of(url)} is asked for tokens over http, where anybody in between can read them",
                remedy="The authorization server must be reached over https.",
            )
        sent = {"accept": "application/json", **(headers or {})}
        return await self._send(httpx2.Request("POST", url, data=form, json=document, headers=sent))

    async def _send(self, request: httpx2.Request) -> Answer:
        where = host_of(str(request.url))
        try:
            with trio.fail_after(_ANSWER_SECONDS):
                response = await self._client.send(request, stream=True, auth=None, follow_redirects=False)
                try:
                    return Answer(response.status_code, response.headers, await _body(response))
                finally:
                    await response.aclose()
        except trio.TooSlowError as error:
            raise SignInFailed(
                f"{where} did not answer within {_ANSWER_SECONDS:g} s",
                remedy="See whether the authorization server is up.",
                transient=True,
            ) from error
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise SignInFailed(
                f"{where} cannot be reached ({type(error).__name__})",
                remedy="See whether the authorization server is up and the network lets us through.",
                transient=True,
            ) from None  # the request is in it, secrets and all


@asynccontextmanager
async def asking(make_client: Callable[[], Awaitable[httpx2.AsyncClient]]) -> AsyncGenerator[Asker]:
    """An asker with a client of its own, which is closed after it."""
    client = await make_client()
    try:
        yield Asker(client)
    finally:
        with trio.move_on_after(1) as last:
            last.shield = True
            await client.aclose()


async def _body(response: httpx2.Response) -> bytes:
    pieces: list[bytes] = []
    size = 0
    chunks = response.aiter_bytes()
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                return b""  # nothing of OAuth is that long
            pieces.append(chunk)
    finally:
        await chunks.aclose()
    return b"".join(pieces)


def refused(
    what: str, answer: Answer, *, secrets: Iterable[str] = (), remedy: str | None = None, registration: bool = False
) -> SignInFailed:
    """What a refusal of the authorization server means.

    Args:
        what: What was refused, as the beginning of a sentence.
        answer: The refusal.
        secrets: What the request carried, and is not to be quoted back.
        remedy: What to do about it.
        registration: Whether a client registration would mend it.
    """
    said = answer.json() or {}
    error = said.get("error")
    error = one_line(error, secrets) if isinstance(error, str) else None
    description = said.get("error_description")
    told = ", ".join(
        part
        for part in (
            f"HTTP {answer.status}",
            error,
            one_line(description, secrets) if isinstance(description, str) else None,
        )
        if part
    )
    return SignInFailed(
        f"{what} ({told})",
        remedy=remedy,
        error=error,
        transient=answer.status >= 500 or answer.status in (408, 425, 429),
        registration=registration,
    )


def one_line(text: str, secrets: Iterable[str] = ()) -> str:
    """A text of a server as it may be shown: masked, on one line, and not long."""
    masked = Masker(secrets).mask(text)
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in masked).split())
    return plain if len(plain) <= _LONGEST_TEXT else f"{plain[:_LONGEST_TEXT]}…"


def host_of(url: str) -> str:
    """What may be said of an address: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def safe_to_send(url: str) -> bool:
    """Whether secrets may be sent there: over TLS, or without leaving this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    host = parts.hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return parts.scheme == "http"
    try:
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unreachable_words(failure: SignInFailed) -> str:
    """Why a token could not be renewed, for somebody who wanted something else."""
    return f"its sign-in cannot be renewed now: {failure.message}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
