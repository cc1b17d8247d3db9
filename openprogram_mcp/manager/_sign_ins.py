"""Signing in, as a manager's servers need it: the room of signing in, and what its news mean for them.

That room is opened when somebody first needs it, since it brings the SDK with it. Until then, what is kept of sign-ins
is read without it, so that the status of every server tells of its sign-in before anybody connects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import frozen

from ..auth.tokens import Credentials, TokenStore
from ..auth.ways import auth_status, way_of
from ..client import MCPClient
from ..config import MCPServerConfig, NoAuth
from ..errors import AuthRequired, ConfigError, InvalidArguments, OpenProgramMCPError, ServerFailed
from ..events import BrowserOpenFailed, EventBus
from ..status import AuthStatus, rfc3339

if TYPE_CHECKING:
    from ..auth.desk import AuthDesk
    from ..auth.flow import SignIn

__all__ = ["PendingSignIn", "SignIns"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0


@frozen
class PendingSignIn:
    """A sign-in that waits for a human.

    Args:
        server: The server.
        authorization_url: Where the human goes. It may be shown to the owner, and is never logged.
        state: What the answer is told by.
        expires_at: When it is given up, in seconds since the epoch.
        redirect_uri: Where the browser is sent back to.
    """

    server: str
    authorization_url: str
    state: str
    expires_at: float
    redirect_uri: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "server": self.server,
            "authorization_url": self.authorization_url,
            "state": self.state,
            "expires_at": rfc3339(self.expires_at),
            "redirect_uri": self.redirect_uri,
        }


class SignIns:
    """See the module.

    Args:
        folder: Where credentials are kept.
        instance: The id of this run of the program.
        bus: Told when no browser could be opened.
        environ: The variables that configurations may refer to.
        base: What relative paths in them are relative to.
        saved: Whether the configuration stands in a file, so that what it does not have is to be forgotten.
        client: Gives the server of a name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        instance: str,
        bus: EventBus,
        environ: Mapping[str, str],
        base: Path,
        saved: bool,
        client: Callable[[str], MCPClient | None],
    ) -> None:
        self._folder = folder
        self._instance = instance
        self._bus = bus
        self._environ = environ
        self._base = base
        self._saved = saved
        self._client = client
        self._kept: dict[str, AuthStatus] = {}
        self._desk: AuthDesk | None = None
        self._wanted = trio.Event()
        self._open = trio.Event()

    async def run(self) -> None:
        """The tasks of signing in, until cancelled."""
        await self._wanted.wait()
        desk_type: type[AuthDesk] = (await trio.to_thread.run_sync(import_module, "openprogram_mcp.auth.desk")).AuthDesk
        open_client = (
            await trio.to_thread.run_sync(import_module, "openprogram_mcp.transports._http_client")
        ).open_client
        desk = desk_type(
            self._instance,
            self._store,
            open_client,
            on_change=self._changed,
            on_signed_in=self._signed_in,
            on_no_browser=self._no_browser,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(desk.run)
            self._desk = desk
            self._open.set()

    async def _desk_open(self) -> AuthDesk:
        self._wanted.set()
        await self._open.wait()
        if self._desk is None:
            raise AssertionError("the room is open")
        return self._desk

    def _store(self, config: MCPServerConfig) -> TokenStore:
        return TokenStore.of(self._folder, config.name, config.account)

    def expanded(self, config: MCPServerConfig) -> MCPServerConfig:
        """A configuration with the values of its variables.

        Raises:
            ConfigError: One is not set.
        """
        return config.expand(self._environ, base=self._base)

    # What is known.

    async def look(self, configs: Iterable[MCPServerConfig]) -> None:
        """Read what is kept for these servers, so that their status tells of it."""
        remote = [config for config in configs if config.resolved_type != "local"]
        if remote:
            self._kept |= await trio.to_thread.run_sync(self._look, remote)

    def _look(self, configs: list[MCPServerConfig]) -> dict[str, AuthStatus]:
        found: dict[str, AuthStatus] = {}
        for config in configs:
            kept: Credentials | None = None
            try:
                config = self.expanded(config)
                kept = self._store(config).read() if self._folder.is_dir() else None
            except OpenProgramMCPError as error:
                logger.debug("%s: what is kept of its sign-in cannot be read: %s", config.name, error.message)
            found[config.name] = auth_status(config, kept)
        return found

    def status(self, config: MCPServerConfig) -> AuthStatus:
        """How a server is signed in to."""
        if way_of(config) is None:
            return auth_status(config, None)
        auth = None if self._desk is None else self._desk.known(config.name)
        if auth is None:
            return self._kept.get(config.name) or auth_status(config, None)
        if config.auth is not None:
            return AuthStatus(kind=config.auth.kind, state=auth.state)
        # A server without 'auth' may want nobody to sign in: that is known once it has asked.
        asked = auth.challenge is not None or auth.credentials is not None
        return AuthStatus(kind="oauth", state=auth.state) if asked else AuthStatus()

    def authorization_url(self, server: str) -> str | None:
        """Where a human goes to finish the sign-in that is under way."""
        waiting = () if self._desk is None else self._desk.pending(server)
        return next((one.authorization_url for one in waiting), None)

    def tokens(self, server: str) -> Iterable[str]:
        """See ``client._signing.Signing``."""
        auth = None if self._desk is None else self._desk.known(server)
        kept = None if auth is None else auth.credentials
        if kept is None:
            return ()
        found = [kept.registration.client_secret] if kept.registration is not None else []
        if kept.tokens is not None:
            found += [kept.tokens.access_token, kept.tokens.refresh_token, kept.tokens.dpop_key]
        return [one for one in found if one]

    # For the servers.

    async def signer(self, config: MCPServerConfig, *, tried: bool) -> Any:
        """See ``client._signing.Signing``."""
        try:
            self._store(config)
        except ConfigError as error:  # where tokens are kept is set by a variable
            raise ServerFailed(error.message, phase="config", remedy=error.remedy, server=config.name) from error
        if not tried:
            await self._forget_others(config)
        if way_of(config) is None:
            if self._desk is not None and not tried:
                self._desk.drop(config.name)
            return None
        return (await self._desk_open()).auth_of(config, tried=tried)

    def adopted(self, server: str) -> None:
        """See ``client._signing.Signing``."""
        if self._desk is not None:
            self._desk.adopted(server)

    async def _forget_others(self, config: MCPServerConfig) -> None:
        """Forget what is kept for another address, or another way to sign in, than the file has now."""
        if not self._saved or not self._folder.is_dir():
            return
        store, way = self._store(config), way_of(config)

        def forget() -> bool:
            kept = store.read()
            if kept is None:
                return False
            if way is None:
                return config.url is None or type(kept.binding).to(config.url).server_url != kept.binding.server_url
            return kept.binding != way.binding

        try:
            if await trio.to_thread.run_sync(forget):
                async with store.transaction():
                    if await trio.to_thread.run_sync(forget):
                        await trio.to_thread.run_sync(store.remove)
                self._kept.pop(config.name, None)
        except OpenProgramMCPError as error:
            logger.warning("%s: what is kept of its old sign-in cannot be forgotten: %s", config.name, error.message)

    async def locked_out(
        self, config: MCPServerConfig, failure: AuthRequired, *, look: bool, tried: bool
    ) -> AuthRequired:
        """See ``client._signing.Signing``."""
        if way_of(config) is None:
            if isinstance(config.auth, NoAuth):
                remedy = "Take 'auth' out of its configuration, or put another one there."
                return _again(
                    failure, f"{failure.message}, and its configuration rules that out", remedy, rejected=True
                )
            # A user and a password in its address.
            return _again(failure, "it rejected the configured credentials", "Correct them in 'url'.", rejected=True)
        desk = await self._desk_open()
        auth = desk.auth_of(config, tried=tried)
        if auth is None:
            return failure
        name = config.name
        if auth.grant == "credentials":
            return _again(
                failure,
                "it does not take the token that its client credentials give",
                "See whether the client may use it, and the 'scope' in 'auth'.",
                rejected=True,
            )
        missing = None
        if look:
            # The verdict does not wait for an authority that does not answer.
            left = trio.current_effective_deadline() - trio.current_time()
            with trio.move_on_after(min(_LOOK_SECONDS, left / 2)):
                missing = await desk.missing_registration(config, auth)
        if missing is not None:
            return _again(failure, missing.message, missing.remedy, registration=True)
        remedy = f"Sign in: openprogram-mcp auth {name}."
        if auth.state == "not_logged_in":
            return _again(failure, failure.message, remedy)
        return _again(failure, "it does not take its sign-in any more, and that cannot be renewed", remedy)

    # For people.

    async def start(self, client: MCPClient, *, browser: bool = False) -> SignIn:
        """Begin a sign-in, or join the one that is under way.

        Raises:
            InvalidArguments: The server is not signed in to in this way, or has not asked for it.
            ConfigError: Its configuration cannot be used.
            SignInFailed: No address came of it.
        """
        config = self.expanded(client.config)
        desk = await self._desk_open()
        if way_of(config) is not None and config.auth is None:
            await client.settled()
            auth = desk.auth_of(config)
            if auth is not None and client.status().ready and auth.challenge is None and auth.credentials is None:
                raise InvalidArguments(f"server {client.name!r} has not asked for a sign-in", server=client.name)
        try:
            return await desk.start(config, browser=browser)
        except ServerFailed as error:
            if getattr(error, "registration", False):
                client.needs_registration(error.message, error.remedy)
            raise

    async def finish(self, server: str, *, code: str | None, state: str | None, address: str | None) -> None:
        """Give a sign-in its answer by hand. See ``AuthDesk.finish``."""
        await (await self._desk_open()).finish(server, code=code, state=state, address=address)

    async def forget(self, config: MCPServerConfig) -> bool:
        """Forget all that is kept for a server; says whether there was anything."""
        with suppress(ConfigError):  # its name and account are enough
            config = self.expanded(config)
        self._kept.pop(config.name, None)
        return await (await self._desk_open()).forget(config)

    async def forget_removed(self, config: MCPServerConfig) -> None:
        """Forget a server that was removed; that this fails is no reason to keep the server."""
        if not self._saved or not self._folder.is_dir():
            return
        try:
            await self.forget(config)
        except OpenProgramMCPError as error:
            logger.warning("%s: what is kept of its sign-in cannot be forgotten: %s", config.name, error.message)

    def under_way(self, server: str) -> list[SignIn]:
        """The sign-ins to a server that have not come to an end."""
        return [] if self._desk is None else list(self._desk.pending(server))

    def pending(self) -> list[PendingSignIn]:
        """The sign-ins that wait for a human."""
        return [self.shown(one) for one in ([] if self._desk is None else self._desk.pending()) if one.waits]

    @staticmethod
    def shown(sign_in: SignIn) -> PendingSignIn:
        """A sign-in as people see it."""
        return PendingSignIn(
            server=sign_in.server,
            authorization_url=sign_in.authorization_url or "",
            state=sign_in.state,
            expires_at=sign_in.expires_at,
            redirect_uri=sign_in.redirect_uri or "",
        )

    def cancel(self, state: str) -> bool:
        """Give a sign-in up; says whether there was one."""
        return self._desk is not None and self._desk.cancel(state)

    # What the room tells.

    def _changed(self, server: str) -> None:
        client = self._client(server)
        if client is not None:
            client.sign_in_changed()

    def _signed_in(self, server: str) -> None:
        client = self._client(server)
        if client is not None:
            client.signed_in()

    def _no_browser(self, sign_in: SignIn, hint: str | None) -> None:
        self._bus.publish(
            BrowserOpenFailed(server=sign_in.server, authorization_url=sign_in.authorization_url or "", hint=hint)
        )


def _again(
    failure: AuthRequired, message: str, remedy: str | None, *, rejected: bool = False, registration: bool = False
) -> AuthRequired:
    return AuthRequired(
        message,
        phase=failure.phase,
        challenges=failure.challenges,
        rejected=rejected,
        registration=registration,
        remedy=remedy,
        server=failure.server,
    )
