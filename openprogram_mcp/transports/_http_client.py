"""The HTTP client of one server: trust, proxies, headers and limits, the same for every request that is made for it.

Owns no request. What went wrong on the way to a server is put into words here, by the kind of the failure.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2
import trio
from attrs import frozen

from ..config import BearerAuth, MCPServerConfig
from ..errors import OpenProgramMCPError, ServerFailed
from ._http_cork import cork

__all__ = ["NotSigned", "Unreachable", "configured_credentials", "open_client", "origin", "own_headers", "unreachable"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 10.0
# As many calls as a server may be allowed at once, what it may ask of us meanwhile, and a few streams besides.
_CONNECTIONS: Final = 1100
# Below the five seconds after which common servers close an idle connection: else a request meets a closed door.
_IDLE_SECONDS: Final = 4.0


async def open_client(config: MCPServerConfig, *, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """The client for a server; whoever asks for it closes it.

    Args:
        config: The server's configuration, expanded.
        auth: Signs requests in. A configured ``Authorization`` header goes before it.

    Raises:
        ServerFailed: In phase ``config``: a certificate file cannot be used, or the address is none.
    """
    _make_discreet()
    try:
        url = httpx2.URL(config.url or "")
    except httpx2.InvalidURL as error:
        raise _unusable(config, "its url is no address", "Correct 'url'.") from error
    if auth is None and url.userinfo and not configured_credentials(config):
        auth = httpx2.BasicAuth(url.username, url.password)
    trust = await trio.to_thread.run_sync(_trust, config)
    try:
        # Environment variables give the proxies, and take hosts out of them.
        client = httpx2.AsyncClient(
            verify=trust,
            # Without any, the client would sign in as the user in the URL, over the header that is configured.
            auth=httpx2.Auth() if configured_credentials(config) else auth,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
            ),
        )
    except (ValueError, httpx2.InvalidURL, ImportError) as error:
        raise _unusable(
            config, "a proxy in the environment cannot be used", "Correct HTTP_PROXY, HTTPS_PROXY and ALL_PROXY."
        ) from error
    cork(client)
    return client


def own_headers(config: MCPServerConfig) -> dict[str, bytes]:
    """The headers that the configuration adds to every request, by names in lower case."""
    headers = {"user-agent": b"openprogram-mcp"}
    if isinstance(config.auth, BearerAuth):
        headers["authorization"] = b"Bearer " + config.auth.token.encode()
    return headers | {name.lower(): value.encode() for name, value in config.headers.items()}


def configured_credentials(config: MCPServerConfig) -> bool:
    """Whether the configuration says itself how to sign in, so that nobody else may."""
    return isinstance(config.auth, BearerAuth) or any(name.lower() == "authorization" for name in config.headers)


def origin(url: httpx2.URL) -> str:
    """Scheme, host and port: what may be said of an address in a message, whatever secrets are in the rest of it."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}" + ("" if url.port is None else f":{url.port}")


def _trust(config: MCPServerConfig) -> ssl.SSLContext:
    """Whom TLS trusts: the system, and the authority that the configuration names."""
    if not config.verify:
        logger.warning(
            "%s: its certificate is NOT verified (verify: false); anybody in between can read it all", config
        )
    trust = httpx2.create_ssl_context(verify=config.verify)
    if config.ca_file is not None and config.verify:
        try:
            trust.load_verify_locations(cafile=config.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(
                config, f"its ca_file cannot be read: {config.ca_file}", "It must hold certificates in PEM form."
            ) from error
    if config.client_cert_file is not None:
        try:
            trust.load_cert_chain(config.client_cert_file, config.client_key_file, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise _unusable(
                config,
                f"its client certificate cannot be used: {config.client_cert_file}",
                "'client_cert_file' and 'client_key_file' must be PEM, belong together and need no password.",
            ) from error
    return trust


def _no_password() -> str:
    # Without it OpenSSL would ask on the terminal.
    raise ValueError("the key needs a password")


def _unusable(config: MCPServerConfig, message: str, remedy: str) -> ServerFailed:
    return ServerFailed(message, phase="config", remedy=remedy, server=config.name)


# What went wrong on the way.


@frozen
class Unreachable:
    """Why nothing could be sent to a server, in words.

    Args:
        message: What happened.
        remedy: What to do about it.
        transient: Time may mend it.
    """

    message: str
    remedy: str | None
    transient: bool = True


class NotSigned(httpx2.ConnectError):
    """A request was not sent, because who signs it has nothing to sign it with now."""

    def __init__(self, failure: OpenProgramMCPError) -> None:
        super().__init__(f"not signed: {failure.message}")
        self.failure = failure


def unreachable(error: BaseException, url: httpx2.URL) -> Unreachable:
    """What a failure to connect means, told by its kind and never by its text."""
    if isinstance(error, NotSigned):
        why = error.failure
        transient = isinstance(why, ServerFailed) and why.transient
        return Unreachable(f"its sign-in cannot be renewed now: {why.message}", why.remedy, transient=transient)
    where = origin(url)
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return Unreachable(
                    f"the certificate of {where} is not trusted: {_said(cause, 'verify_message')}",
                    "Name the authority that signed it in 'ca_file', or correct the host in 'url'.",
                    transient=False,
                )
            case ssl.SSLError():
                return Unreachable(
                    f"no TLS connection to {where}: {_said(cause, 'reason')}",
                    "See whether it speaks https there, and whether it wants 'client_cert_file'.",
                )
            case socket.gaierror():
                return Unreachable(
                    f"the host of {where} is not known", "Correct 'url', or see to the name service and the network."
                )
            case ConnectionRefusedError():
                return Unreachable(f"nothing listens at {where}", "Start the server, or correct 'url'.")
            case httpx2.ProxyError():
                return Unreachable(
                    f"the proxy does not let us through to {where}",
                    "See HTTP_PROXY, HTTPS_PROXY and NO_PROXY in the environment.",
                )
            case httpx2.ConnectTimeout():
                return Unreachable(
                    f"{where} did not take the connection within {_CONNECT_SECONDS:g} s",
                    "See whether the host is up and no firewall is in the way.",
                )
    return Unreachable(f"{where} cannot be reached", "See whether the server is up and the network lets us through.")


def _said(error: ssl.SSLError, name: str) -> str:
    """What OpenSSL says of a failure, which it does not of every one."""
    return getattr(error, name, None) or "the handshake failed"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it, the innermost first."""
    if error is None:
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    yield from _causes(error.__cause__ or error.__context__)
    yield error


# What httpx2 says.


class _Discreet(logging.Filter):
    """The client library tells every request with its whole address; what is secret in it is taken out."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_discreet(one) for one in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: _discreet(one) for name, one in record.args.items()}
        return True


def _discreet(value: Any) -> Any:
    return value.copy_with(userinfo=b"", query=None, fragment=None) if isinstance(value, httpx2.URL) else value


_DISCREET: Final = _Discreet()


def _make_discreet() -> None:
    logging.getLogger("httpx2").addFilter(_DISCREET)  # adding it again does nothing
