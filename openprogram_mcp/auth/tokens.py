"""What is kept of a sign-in: tokens, the client that we are to the authorization server, and what was found about it.

One file a server and account, for its owner's eyes, in the state directory. What it holds belongs to one address and
one way to sign in (see :class:`Binding`): for any other it is as if it were not there. Changes that depend on what it
holds are made in a :meth:`TokenStore.transaction`, which keeps all other tasks and processes out.

Imports nothing of the SDK, so that the state of every sign-in can be told before anybody pays for that.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self, cast
from urllib.parse import quote, urlsplit, urlunsplit

import filelock
import trio
from attrs import asdict, evolve, field, fields, frozen

from ..errors import StorageError
from ..storage import PrivateFile, make_private_folder, revision_of
from ._vault import Vault, chosen_vault

__all__ = [
    "Binding",
    "Credentials",
    "Registration",
    "TokenStore",
    "Tokens",
    "file_name",
    "same_issuer",
]

logger = logging.getLogger(__name__)

_VERSION: Final = 1

# An exchange with an authorization server takes at most half of it; more than two in a row are not to be waited for.
_TRANSACTION_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
_MARGIN_SECONDS: Final = 120.0

# File systems allow 255 bytes; the lock and the temporary file add to the name.
_LONGEST_NAME: Final = 180

_DEVICES: Final = frozenset(
    {"con", "prn", "aux", "nul", *(f"com{digit}" for digit in range(10)), *(f"lpt{digit}" for digit in range(10))}
)
"""Names that Windows takes for devices, whatever follows the dot."""


@frozen(kw_only=True)
class Tokens:
    """An access token and what came with it.

    ``expires_at`` is in seconds since the epoch, ``lifetime`` how many seconds it was given; ``None`` if nobody said.
    ``dpop_key`` is the private key that it is bound to, where it is.
    """

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at: float | None = None
    lifetime: float | None = None
    scope: str | None = None
    dpop_key: str | None = field(default=None, repr=False)

    def valid(self) -> bool:
        """Whether it has not expired, as far as is known."""
        return self.expires_at is None or time.time() < self.expires_at

    def ages(self) -> bool:
        """Whether it is about to expire: less than a fifth of its life, and of two minutes, is left."""
        if self.expires_at is None:
            return False
        margin = _MARGIN_SECONDS if self.lifetime is None else min(_MARGIN_SECONDS, self.lifetime / 5)
        return time.time() + margin >= self.expires_at


@frozen(kw_only=True)
class Registration:
    """The client that we are to one authorization server.

    Args:
        client_id: Its id.
        client_secret: Its secret, where it has one.
        secret_expires_at: When the secret expires, in seconds since the epoch; ``None`` for never.
        method: How it shows who it is at the token endpoint.
        redirect_uri: The address to which the browser is sent back, where one was registered.
        way: How it came to be: it was ``given``, is a metadata ``document``, or was registered (``dynamic``).
    """

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    secret_expires_at: float | None = None
    method: str = "none"
    redirect_uri: str | None = None
    way: Literal["given", "document", "dynamic"] = "dynamic"

    @property
    def expired(self) -> bool:
        """Whether it has to be made anew."""
        return self.secret_expires_at is not None and self.secret_expires_at <= time.time()

    @property
    def redirect_port(self) -> int | None:
        """The local port that was registered."""
        return None if self.redirect_uri is None else urlsplit(self.redirect_uri).port


@frozen(kw_only=True)
class Binding:
    """What credentials belong to: the address, the client that the configuration names, and the scope it asks for."""

    server_url: str
    client_id: str | None = None
    scope: str | None = None

    @classmethod
    def to(cls, url: str, client_id: str | None = None, scope: str | None = None) -> Self:
        """The binding to an address: its fragment, and the case of its host, do not count."""
        parts = urlsplit(url)
        plain = parts._replace(scheme=parts.scheme.lower(), netloc=_lower_host(parts.netloc), fragment="")
        return cls(server_url=urlunsplit(plain), client_id=client_id, scope=scope)


@frozen(kw_only=True)
class Credentials:
    """All that is kept of a sign-in.

    Args:
        binding: What it belongs to.
        issuer: The authorization server it belongs to.
        tokens: The tokens, where there are any.
        registration: The client that we are.
        metadata: What the authorization server says of itself.
        resource: What the server says of itself as a protected resource.
        wanted_scope: What the server has said it wants beyond what was granted: the next sign-in asks for it too.
        rejected: The authorization server does not accept the refresh token any more.
    """

    binding: Binding
    issuer: str | None = None
    tokens: Tokens | None = None
    registration: Registration | None = None
    metadata: Mapping[str, Any] | None = field(default=None, repr=False)
    resource: Mapping[str, Any] | None = field(default=None, repr=False)
    wanted_scope: str | None = None
    rejected: bool = False

    @property
    def state(self) -> Literal["not_logged_in", "logged_in", "expired"]:
        """How far it gets us: to a token that is valid or can be had without a human, or not."""
        if self.tokens is None:
            return "not_logged_in"
        if self.rejected or not (self.tokens.valid() or self.tokens.refresh_token):
            return "expired"
        return "logged_in"

    def without_tokens(self) -> Self:
        """What is left when the tokens are of no use any more."""
        return evolve(self, tokens=None, rejected=False)

    def to_json(self) -> dict[str, Any]:
        """The form in which it is kept."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what :meth:`to_json` made.

        Raises:
            ValueError: It does not fit.
        """
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError("not the form of this version")
        tokens, registration = data.get("tokens"), data.get("registration")
        return cls(
            binding=_made(Binding, data.get("binding")),
            issuer=_text(data.get("issuer")),
            tokens=None if tokens is None else _made(Tokens, tokens),
            registration=None if registration is None else _made(Registration, registration),
            metadata=_mapping(data.get("metadata")),
            resource=_mapping(data.get("resource")),
            wanted_scope=_text(data.get("wanted_scope")),
            rejected=data.get("rejected") is True,
        )


def same_issuer(one: str, other: str) -> bool:
    """Whether two issuers name the same authorization server: one slash at the end makes no difference, all else does.

    RFC 8414 section 3.3 compares them as texts; deployed servers are not that careful about the slash.
    """
    return _plain_issuer(one) == _plain_issuer(other)


def _plain_issuer(issuer: str) -> str:
    parts = urlsplit(issuer)
    host = _lower_host(parts.netloc)
    usual = {"https": ":443", "http": ":80"}.get(parts.scheme.lower(), "")
    if usual:
        host = host.removesuffix(usual)
    return urlunsplit((parts.scheme.lower(), host, parts.path.removesuffix("/"), parts.query, parts.fragment))


def _lower_host(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return f"{user}{at}{host.lower()}"


def file_name(server: str, account: str | None = None) -> str:
    """The name of a server's file: no two servers share one, whatever the file system makes of case and odd letters."""
    stem = _escaped(server) if account is None else f"{_escaped(server)}@{_escaped(account)}"
    if stem.partition(".")[0] in _DEVICES:
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if len(stem) > _LONGEST_NAME:
        # "%~" cannot come of escaping, so that no other server's name is like this.
        digest = revision_of(json.dumps([server, account]).encode("utf-8", "surrogatepass"))
        stem = f"{stem[: _LONGEST_NAME - 40].rstrip('%')}%~{digest[:32]}"
    return f"{stem}.json"


def _escaped(name: str) -> str:
    quoted = quote(name.encode("utf-8", "surrogatepass"), safe="")
    pieces: list[str] = []
    at = 0
    while at < len(quoted):
        letter = quoted[at]
        if letter == "%":
            pieces.append(quoted[at : at + 3])
            at += 3
            continue
        pieces.append(f"%{ord(letter):02X}" if letter.isupper() else letter)
        at += 1
    return "".join(pieces)


@frozen
class TokenStore:
    """Where one server's credentials are kept.

    Args:
        path: The file.
        vault: Keeps the secrets instead of the file; ``None`` for the file itself.
    """

    path: Path
    vault: Vault | None = None

    @classmethod
    def of(cls, folder: Path, server: str, account: str | None = None) -> Self:
        """The store of a server and account in a folder."""
        return cls(folder / file_name(server, account), chosen_vault())

    def read(self) -> Credentials | None:
        """What is kept; ``None`` when there is nothing, or nothing that can be understood. Blocks.

        Raises:
            StorageError: It is there and cannot be read.
        """
        data = PrivateFile(self.path).read().data
        if data is None:
            return None
        try:
            found = json.loads(data)
            if isinstance(found, dict) and found.get("vault"):
                found = _joined(found, self._from_vault())
            return Credentials.from_json(found)
        except ValueError:  # nothing of it is said: it is full of secrets
            logger.warning("%s cannot be understood; a new sign-in replaces it", self.path)
            return None

    def load(self, binding: Binding) -> Credentials | None:
        """What is kept, if it belongs to ``binding``. Blocks.

        Raises:
            StorageError: It is there and cannot be read.
        """
        found = self.read()
        return found if found is not None and found.binding == binding else None

    def write(self, credentials: Credentials) -> None:
        """Replace what is kept. Blocks.

        Raises:
            StorageError: It cannot be written; what was there is still there.
        """
        kept = credentials.to_json()
        if self.vault is not None:
            kept, secrets = _parted(kept)
            self.vault.put(str(self.path), json.dumps(secrets))
        PrivateFile(self.path).write(json.dumps(kept, indent=1).encode())

    def remove(self) -> bool:
        """Forget everything. Blocks.

        Returns:
            Whether there was anything.

        Raises:
            StorageError: It cannot be deleted.
        """
        if not self.path.exists():
            return False
        if self.vault is not None:
            self.vault.drop(str(self.path))
        PrivateFile(self.path).remove()
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """Keep all others who change what is kept out, in this process and in others, until the body is done.

        What one read before is to be read again in the body.

        Raises:
            StorageError: Another holds it for longer than a minute, or the lock cannot be made.
        """
        # The lock is not the thread's, as that of a write is: the body waits for the network.
        lock = filelock.FileLock(self.path.with_name(f".{self.path.name}.use"), mode=0o600, thread_local=False)
        try:
            await trio.to_thread.run_sync(make_private_folder, self.path.parent)
            with trio.move_on_after(_TRANSACTION_SECONDS) as limit:
                while not _taken(lock):  # noqa: ASYNC110 - the lock of a file wakes nobody
                    await trio.sleep(_POLL_SECONDS)
            if limit.cancelled_caught:
                raise StorageError(
                    f"the sign-in kept in {self.path} has been in use by another process for "
                    f"{_TRANSACTION_SECONDS:g} s; nothing was changed.",
                    remedy="Try again; if it persists, look for a process of this program that hangs.",
                )
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be locked: {error.strerror or type(error).__name__}; nothing was changed.",
                remedy="Look at the owner and the permissions of its folder, and at the space on its disk.",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _from_vault(self) -> Any:
        vault = self.vault or chosen_vault("keyring")
        secrets = None if vault is None else vault.get(str(self.path))
        return None if secrets is None else json.loads(secrets)


def _taken(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return False
    return True


# The form in which it is kept.


def _parted(kept: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stays in the file, and the secrets that go to the vault."""
    registration = kept["registration"]
    secrets = {
        "tokens": kept["tokens"],
        "client_secret": None if registration is None else registration["client_secret"],
    }
    if registration is not None:
        registration = {**registration, "client_secret": None}
    return {**kept, "tokens": None, "registration": registration, "vault": True}, secrets


def _joined(kept: dict[str, Any], secrets: Any) -> dict[str, Any]:
    if not isinstance(secrets, dict):
        return kept  # somebody has emptied the keyring
    registration = kept.get("registration")
    if isinstance(registration, dict):
        registration = {**registration, "client_secret": secrets.get("client_secret")}
    return {**kept, "tokens": secrets.get("tokens"), "registration": registration}


_FITS: Final[Mapping[str, tuple[type, ...]]] = dict.fromkeys(
    ("expires_at", "lifetime", "secret_expires_at"), (int, float)
)


def _made(form: type[Any], data: Any) -> Any:
    """One of the parts, made of JSON; what a later version has added is left out.

    Raises:
        ValueError: It does not fit.
    """
    if not isinstance(data, dict):
        raise ValueError("not an object")  # noqa: TRY004 - callers tell misfits by one class
    known = {one.name: data[one.name] for one in fields(form) if one.name in data}
    for name, value in known.items():
        if value is not None and not isinstance(value, _FITS.get(name, (str,))):
            raise ValueError(f"{name} does not fit")
    try:
        return form(**known)
    except TypeError as error:
        raise ValueError("a part is missing") from error


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None
