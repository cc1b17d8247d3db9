"""The commands of a manager that are about signing in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from ..client import MCPClient
from ..errors import InvalidArguments
from ..status import ServerState, ServerStatus
from ._sign_ins import PendingSignIn, SignIns

__all__ = ["AuthCommands"]

_UP: Final = frozenset({ServerState.CONNECTED, ServerState.RECONNECTING, ServerState.STARTING})


class AuthCommands(ABC):
    """What a manager can be told about signing in."""

    _sign_ins: SignIns

    @abstractmethod
    def _editable_client(self, name: str) -> MCPClient: ...

    @abstractmethod
    def _refuse_if_read_only(self) -> None: ...

    @abstractmethod
    async def wait_settled(self, name: str) -> ServerStatus:
        """Wait until a server is neither pending nor starting."""

    async def start_auth(self, name: str) -> PendingSignIn:
        """Begin a sign-in to a server, or join the one that is under way; no browser is opened.

        Returns:
            Where to go. Once somebody has consented there, the server connects by itself.

        Raises:
            UnknownServer: None can be used by this name.
            InvalidArguments: The server is not signed in to with a browser, or has not asked for it.
            ServerFailed: No address came of it; where a client id is missing, the remedy says how to give one.
        """
        return self._sign_ins.shown(await self._sign_ins.start(self._editable_client(name)))

    async def authenticate(self, name: str) -> ServerStatus:
        """Begin a sign-in, open a browser for it, and wait until it has come to an end and the server to a verdict.

        Where no browser can be opened, the event ``BrowserOpenFailed`` has the address.

        Raises:
            TimedOut: Nobody signed in within five minutes.
            OpenProgramMCPError: As :meth:`start_auth`; or the sign-in came to nothing.
        """
        sign_in = await self._sign_ins.start(self._editable_client(name), browser=True)
        await sign_in.result()
        return await self.wait_settled(name)

    async def wait_auth(self, name: str) -> ServerStatus:
        """Wait for the end of the sign-ins to a server that are under way, and for the server's verdict.

        Raises:
            OpenProgramMCPError: One came to nothing.
        """
        for sign_in in self._sign_ins.under_way(name):
            await sign_in.result()
        return await self.wait_settled(name)

    async def finish_auth(
        self, name: str, code: str | None = None, state: str | None = None, *, redirect_url: str | None = None
    ) -> ServerStatus:
        """Give a sign-in its answer by hand, and wait for the server's verdict.

        Args:
            name: The server.
            code: The code of the answer.
            state: Its state; without it, the code is for the one sign-in to the server that waits.
            redirect_url: The whole address to which the browser was sent back, instead of both.

        Raises:
            InvalidArguments: No sign-in waits for this; it may have been answered before.
            ServerFailed: The sign-in came to nothing.
        """
        self._editable_client(name)
        await self._sign_ins.finish(name, code=code, state=state, address=redirect_url)
        return await self.wait_settled(name)

    async def clear_auth(self, name: str) -> ServerStatus:
        """Forget the tokens and the registration of a server, and let it do without them.

        Raises:
            UnknownServer: None can be used by this name.
            StorageError: They cannot be deleted.
        """
        client = self._editable_client(name)
        if await self._sign_ins.forget(client.config) and client.state in _UP:
            client.restart()
        return await self.wait_settled(name)

    def pending_auth(self) -> list[PendingSignIn]:
        """The sign-ins that wait for a human."""
        return self._sign_ins.pending()

    def cancel_auth(self, state: str) -> None:
        """Give up a sign-in that waits for a human.

        Raises:
            InvalidArguments: None has this state.
        """
        self._refuse_if_read_only()
        if not self._sign_ins.cancel(state):
            raise InvalidArguments("no sign-in with this state waits", remedy="List the pending ones.", path="state")
