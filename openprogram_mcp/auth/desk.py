"""The counter of this room: who is signed in to which server, and who is about to be.

Owns the tasks in which tokens are renewed and humans sign in, and the local address that browsers come back to. They
live in :meth:`AuthDesk.run`; when that ends, so do they. Does not know what a server does with its sign-in: it is told
by a callback when one has changed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import httpx2
import trio
from attrs import define, field

from ..config import MCPServerConfig, OAuthAuth
from ..errors import ConfigError, InvalidArguments, OpenProgramMCPError
from ._asking import SignInFailed, asking
from ._browser import forwarding_hint, open_browser
from ._clients import Client, how_to_give_a_client
from ._discovery import discover
from ._listener import DEFAULT_PORT, Listener, callback_address, first_port
from ._page import Page, page
from .flow import Returned, SignIn, new_state, returned
from .provider import ServerAuth
from .tokens import TokenStore
from .ways import Way, way_of

__all__ = ["AuthDesk"]

_RESULT_SECONDS: Final = 30.0


@define(eq=False)
class AuthDesk:
    """See the module.

    Args:
        instance: The id of this run of the program.
        store: Gives the store of a server's credentials.
        make_client: Makes an HTTP client that trusts whom a server's configuration trusts.
        on_change: Told, synchronously, the name of a server whose sign-in has changed.
        on_signed_in: Told, synchronously, the name of a server to which somebody has just signed in.
        on_no_browser: Told, synchronously, of a sign-in for which no browser could be opened, and how to help.
    """

    instance: str
    store: Callable[[MCPServerConfig], TokenStore]
    make_client: Callable[[MCPServerConfig], Awaitable[httpx2.AsyncClient]]
    on_change: Callable[[str], None] = lambda _server: None
    on_signed_in: Callable[[str], None] = lambda _server: None
    on_no_browser: Callable[[SignIn, str | None], None] = lambda _sign_in, _hint: None
    browse: Callable[[str], Awaitable[bool]] = open_browser
    _auths: dict[str, tuple[Way, ServerAuth]] = field(factory=dict, init=False)
    _tried: dict[str, tuple[Way, ServerAuth]] = field(factory=dict, init=False)
    _pending: dict[str, SignIn] = field(factory=dict, init=False)
    _jobs: Any = field(init=False)
    _listener: Listener = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._jobs = trio.open_memory_channel[Callable[[], Awaitable[None]]](math.inf)
        self._listener = Listener(self._came_back, self._post)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do the work of the room, until cancelled."""
        send, receive = self._jobs
        with send, receive:
            async with trio.open_nursery() as nursery:
                task_status.started()
                try:
                    async for job in receive:
                        nursery.start_soon(job)
                finally:
                    for _, auth in self._auths.values():
                        auth.hurry()

    def _post(self, job: Callable[[], Awaitable[None]]) -> None:
        try:
            self._jobs[0].send_nowait(job)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise SignInFailed("the program is ending") from None

    # What requests are signed with.

    def auth_of(self, config: MCPServerConfig, *, tried: bool = False) -> ServerAuth | None:
        """What signs the requests to a server; ``None`` where the configuration says how, or that nobody signs in.

        Args:
            config: Its configuration, expanded.
            tried: It is only tried, beside the one in force: what comes of that is not kept before it is
                :meth:`adopted`.
        """
        way = way_of(config)
        if way is None:
            return None
        for known in (self._auths.get(config.name), self._tried.get(config.name)):
            if known is not None and known[0] == way:
                if not tried:
                    self._auths[config.name] = known
                    known[1].keep()
                return known[1]
        auth = self._made(config, way)
        auth.fleeting = tried
        (self._tried if tried else self._auths)[config.name] = (way, auth)
        return auth

    def adopted(self, server: str) -> None:
        """What was tried for a server is in force from now on; what was kept for another address is forgotten."""
        known = self._tried.pop(server, None)
        if known is not None:
            self._auths[server] = known
            known[1].keep()

    def drop(self, server: str) -> None:
        """Nobody signs in to a server any more."""
        self._auths.pop(server, None)

    def _made(self, config: MCPServerConfig, way: Way) -> ServerAuth:
        return ServerAuth(
            config.name,
            binding=way.binding,
            store=self.store(config),
            client=Client(
                client_name=way.client_name,
                client_id=way.binding.client_id if not way.document else None,
                client_secret=way.client_secret,
                metadata_url=way.document,
            ),
            make_client=partial(self.make_client, config),
            post=self._post,
            grant=way.grant,
            assertion=way.assertion(),
            organisation=None if way.issuer is None else (way.issuer, way.consent),
            on_change=partial(self.on_change, config.name),
        )

    def known(self, server: str) -> ServerAuth | None:
        """What signs the requests to a server, if there is anything by now."""
        found = self._auths.get(server)
        return None if found is None else found[1]

    async def missing_registration(self, config: MCPServerConfig, auth: ServerAuth) -> SignInFailed | None:
        """Why nobody could sign in to a server, where it is known that a client id has to be given first.

        Args:
            config: Its configuration, expanded.
            auth: What signs the requests to it.
        """
        if auth.grant != "code" or auth.client.client_id is not None:
            return None
        kept = auth.credentials
        if kept is not None and kept.registration is not None:
            return None
        challenge = auth.challenge
        try:
            async with asking(auth.make_client) as asker:
                authority = await discover(
                    asker,
                    auth.binding.server_url,
                    resource_metadata=None if challenge is None else challenge.resource_metadata,
                )
        except OpenProgramMCPError:
            return None  # whoever signs in is told
        if auth.client.can_be_had(authority):
            return None
        try:
            port = _configured_port(config) or first_port()
        except ConfigError:
            port = DEFAULT_PORT  # whoever signs in is told
        return SignInFailed(
            f"its authorization server {authority.issuer} registers no clients",
            remedy=how_to_give_a_client(authority, callback_address(port)),
            server=config.name,
            registration=True,
        )

    # Signing in.

    def pending(self, server: str | None = None) -> tuple[SignIn, ...]:
        """The sign-ins that wait for a human, of one server or of all."""
        return tuple(one for one in self._pending.values() if server is None or one.server == server)

    async def start(self, config: MCPServerConfig, *, browser: bool = False) -> SignIn:
        """Begin a sign-in, or join the one that is under way. Comes back when there is an address to go to.

        Args:
            config: The server's configuration, expanded.
            browser: Open a browser there.

        Raises:
            SignInFailed: There is nothing to sign in to, or no address came of it.
        """
        auth = self.auth_of(config)
        if auth is None or auth.grant != "code":
            raise InvalidArguments(
                f"server {config.name!r} is not signed in to with a browser: its configuration says how it is",
                remedy="Take 'auth' and the 'Authorization' header out of its configuration, or put other ones there.",
                server=config.name,
            )
        sign_in = next((one for one in self._pending.values() if one.auth is auth and not one.done.is_set()), None)
        if sign_in is None:
            sign_in = SignIn(auth, new_state(self.instance), self._listener, _configured_port(config))
            self._pending[sign_in.state] = sign_in
            self._post(partial(self._sign_in, sign_in))
        await sign_in.ready.wait()
        if sign_in.authorization_url is None or sign_in.failure is not None:
            await sign_in.result()
        url = sign_in.authorization_url or ""
        if browser and not sign_in.done.is_set() and not await self.browse(url):
            self.on_no_browser(sign_in, forwarding_hint(self._port_of(sign_in)))
        return sign_in

    @staticmethod
    def _port_of(sign_in: SignIn) -> int | None:
        return None if sign_in.redirect_uri is None else httpx2.URL(sign_in.redirect_uri).port

    async def _sign_in(self, sign_in: SignIn) -> None:
        try:
            await sign_in.run(partial(self.on_change, sign_in.server))
        finally:
            self._pending.pop(sign_in.state, None)
        if sign_in.failure is None:
            self.on_signed_in(sign_in.server)
        else:
            self.on_change(sign_in.server)

    def cancel(self, state: str) -> bool:
        """Give a sign-in up; says whether there was one."""
        found = self._by_state(state)
        if found is not None:
            found.cancel()
        return found is not None

    def _by_state(self, state: str | None) -> SignIn | None:
        if state is None:
            return None
        # All are looked at, so that nothing can be told from how long it takes.
        found = [one for one in list(self._pending.values()) if one.answers_to(state)]
        return found[0] if found else None

    async def finish(
        self, server: str, *, code: str | None = None, state: str | None = None, address: str | None = None
    ) -> None:
        """Give a sign-in its answer by hand, and wait for its end.

        Args:
            server: The server.
            code: The code.
            state: The state; without it, the code is for the one sign-in of the server that waits.
            address: The whole address to which the browser was sent back, instead of both.

        Raises:
            InvalidArguments: No sign-in waits for this.
            OpenProgramMCPError: It came to nothing.
        """
        answer = Returned(code=code, state=state, by_hand=True) if address is None else returned(address)
        waiting = [one for one in self.pending(server) if one.waits]
        found = waiting[0] if answer.state is None and answer.by_hand and len(waiting) == 1 else None
        if answer.state is not None:
            found = self._by_state(answer.state)
        if found is None or found.server != server:
            raise InvalidArguments(
                f"no sign-in to server {server!r} waits for this answer",
                remedy="Start one, and answer it within its time; an answer counts once.",
                server=server,
            )
        found.take(answer)
        await found.result()

    async def _came_back(self, target: str) -> Page:
        """A browser has come back."""
        answer = returned(target)
        sign_in = self._by_state(answer.state)
        if sign_in is None:
            return page(
                400,
                "Nobody waits for this sign-in",
                "It is over, or it was begun somewhere else.",
                "Start it again where you have started it.",
            )
        try:
            sign_in.take(answer)
        except InvalidArguments as error:
            return page(400, "This answer is not the true one", f"{error.message}.", error.remedy or "")
        with trio.move_on_after(_RESULT_SECONDS):
            await sign_in.done.wait()
        if not sign_in.done.is_set():
            return page(200, "One moment", f"The sign-in to {sign_in.server} is being completed.")
        if sign_in.failure is not None:
            return page(
                400, f"Not signed in to {sign_in.server}", sign_in.failure.message, sign_in.failure.remedy or ""
            )
        return page(200, f"Signed in to {sign_in.server}", "You can close this page.")

    async def forget(self, config: MCPServerConfig) -> bool:
        """Forget tokens and registration of a server; says whether there was anything.

        Raises:
            StorageError: They cannot be deleted.
        """
        for one in self.pending(config.name):
            one.cancel()
        store = self.store(config)
        async with store.transaction():
            removed = await trio.to_thread.run_sync(store.remove)
        auth = self.known(config.name)
        if auth is not None:
            auth.challenge = None
            auth.adopt(None)
        return removed


def _configured_port(config: MCPServerConfig) -> int | None:
    return config.auth.redirect_port if isinstance(config.auth, OAuthAuth) else None
