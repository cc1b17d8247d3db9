"""One sign-in by a human: from the first question about the server to the tokens that are kept.

It runs in a task of its own, within a budget, and can be cancelled; nothing else waits for it. What finishes it is an
answer of the authorization server, on whatever way it comes: the browser's, or one that a human pasted. An answer that
is not the true one leaves it waiting. The verifier is gone once it was used, and the ``state`` counts once.

MCP specification: basic/authorization; RFC 7636, RFC 9207.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import time
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

import trio
from attrs import define, evolve, field, frozen

from ..errors import CannotListen, InvalidArguments, OpenProgramMCPError, TimedOut
from ._asking import Asker, SignInFailed, asking, host_of, one_line
from ._clients import registered
from ._discovery import Authority, discover
from ._grants import redeem, scope_to_ask, united
from ._listener import Listener, callback_address
from .provider import ServerAuth, moved
from .tokens import Credentials, Registration, Tokens, same_issuer

__all__ = ["SIGN_IN_SECONDS", "Returned", "SignIn", "new_state", "returned"]

SIGN_IN_SECONDS: Final = 300.0
"""How long a human has, in seconds."""

_FORGOTTEN: Final = frozenset({"invalid_client", "unauthorized_client"})


def new_state(instance: str) -> str:
    """A ``state`` that nobody can guess, with the id of the instance that waits for it."""
    return f"{secrets.token_urlsafe(32)}.{instance}"


@frozen(kw_only=True)
class Returned:
    """What an authorization server has answered by way of the browser. ``state`` is ``None`` for a code by hand."""

    code: str | None = field(default=None, repr=False)
    state: str | None = field(default=None, repr=False)
    issuer: str | None = None
    error: str | None = None
    description: str | None = None
    by_hand: bool = False


def returned(address: str) -> Returned:
    """What stands in the address to which the browser was sent back, or only in its path and query.

    A parameter that stands there twice counts as not there.
    """
    query = parse_qs(urlsplit(address).query, keep_blank_values=True)
    only = {name: values[0] for name, values in query.items() if len(values) == 1}
    return Returned(
        code=only.get("code") or None,
        state=only.get("state") or None,
        issuer=only.get("iss"),
        error=only.get("error"),
        description=only.get("error_description"),
    )


@define(eq=False)
class SignIn:
    """One sign-in.

    Args:
        auth: What it is for.
        state: Tells its answer from those of others.
        listener: Where the browser comes back to.
        port: The port that the configuration asks for; 0 for any, ``None`` if it does not matter.
        seconds: The budget.
    """

    auth: ServerAuth
    state: str = field(repr=False)
    listener: Listener
    port: int | None = None
    seconds: float = SIGN_IN_SECONDS
    opened_at: float = field(factory=time)
    authorization_url: str | None = field(default=None, init=False, repr=False)
    redirect_uri: str | None = field(default=None, init=False)
    ready: trio.Event = field(factory=trio.Event, init=False)
    """Set when there is an address for the browser, or never will be."""
    done: trio.Event = field(factory=trio.Event, init=False)
    failure: OpenProgramMCPError | None = field(default=None, init=False)
    """Why it came to nothing, once it is done."""
    _authority: Authority | None = field(default=None, init=False)
    _reused: Registration | None = field(default=None, init=False)
    _verifier: str | None = field(default=None, init=False, repr=False)
    _answer: Returned | None = field(default=None, init=False, repr=False)
    _answered: trio.Event = field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _cancelled: bool = field(default=False, init=False)

    @property
    def server(self) -> str:
        """The name of the server."""
        return self.auth.server

    @property
    def expires_at(self) -> float:
        """When the budget is over, in seconds since the epoch."""
        return self.opened_at + self.seconds

    @property
    def waits(self) -> bool:
        """Whether an answer would still count."""
        return self.authorization_url is not None and self._answer is None and not self.done.is_set()

    def cancel(self) -> None:
        """Give it up."""
        self._cancelled = True
        self._scope.cancel()

    async def result(self) -> None:
        """Wait for its end.

        Raises:
            OpenProgramMCPError: It came to nothing.
        """
        await self.done.wait()
        if self.failure is not None:
            raise self.failure

    def answers_to(self, state: str) -> bool:
        """Whether a ``state`` is its own; takes as long whatever the difference is."""
        return hmac.compare_digest(state.encode("utf-8", "replace"), self.state.encode())

    def take(self, answer: Returned) -> None:
        """Take the answer, if it is the true one.

        Raises:
            InvalidArguments: It is not; the sign-in waits on.
        """
        if not self.waits or self._authority is None:
            raise InvalidArguments("this sign-in waits for no answer any more", server=self.server)
        metadata = self._authority.metadata
        says_who = bool(metadata is not None and metadata.authorization_response_iss_parameter_supported)
        if answer.issuer is None:
            if says_who and not answer.by_hand:
                raise InvalidArguments(
                    f"the answer does not say whose it is, and {host_of(self._authority.issuer)} always does",
                    remedy="Go through the sign-in again, with the address that was given.",
                    server=self.server,
                )
        elif answer.issuer != self._authority.issuer:
            # As texts, nothing made equal (RFC 9207 section 2.4): what differs by a slash may be another tenant.
            raise InvalidArguments(
                f"the answer is that of {one_line(answer.issuer)}, not of {self._authority.issuer}",
                remedy="Go through the sign-in again, with the address that was given.",
                server=self.server,
            )
        if answer.code is None and answer.error is None:
            raise InvalidArguments("the answer holds no code", server=self.server)
        self._answer = answer
        self._answered.set()

    # Its life.

    async def run(self, announce: Callable[[], None]) -> None:
        """Go through with it.

        Args:
            announce: Called when an answer can be taken, before anybody sees the address.
        """
        try:
            with self._scope, trio.move_on_after(self.seconds) as budget:
                await self._go(announce)
            if self._cancelled and self._scope.cancelled_caught:
                self.failure = SignInFailed("the sign-in was cancelled", server=self.server)
            elif budget.cancelled_caught:
                if self._reused is not None and self._answer is None:
                    # It may be that we were forgotten there, which only the human at the browser has seen.
                    await self._drop_client(self._reused)
                self.failure = TimedOut(
                    f"nobody signed in to {self.server!r} within {self.seconds:g} s",
                    budget="sign_in",
                    seconds=self.seconds,
                    remedy="Start the sign-in again.",
                    server=self.server,
                )
        except OpenProgramMCPError as error:
            error.server = error.server or self.server
            self.failure = error
        except BaseException:
            # The program ends, or there is a fault of ours: nobody is to wait for it.
            self.failure = SignInFailed("the sign-in was broken off", server=self.server)
            raise
        finally:
            self._verifier = None
            self.ready.set()
            self.done.set()

    async def _go(self, announce: Callable[[], None]) -> None:
        auth = self.auth
        kept = await auth.load()
        challenge = auth.challenge
        async with AsyncExitStack() as stack:
            asker = await stack.enter_async_context(asking(auth.make_client))
            authority = self._authority = await discover(
                asker,
                auth.binding.server_url,
                resource_metadata=None if challenge is None else challenge.resource_metadata,
                known_issuer=None if kept is None else kept.issuer,
            )
            _refuse_without_pkce(authority)
            authority = self._authority = auth.bound(authority)
            if kept is not None and kept.issuer is not None and not same_issuer(kept.issuer, authority.issuer):
                if auth.client.client_id is not None:
                    raise moved(self.server, kept.issuer, authority)
                # What belongs to another authorization server is not for this one.
                kept = None
            scope = scope_to_ask(
                authority,
                configured=auth.binding.scope,
                challenged=None if challenge is None else challenge.scope,
                before=None if kept is None else united(kept.tokens.scope if kept.tokens else None, kept.wanted_scope),
            )
            client, redirect_uri = await self._client(stack, asker, authority, kept, scope)
            if kept is not None and kept.registration == client:
                self._reused = client
            elif client.way == "dynamic":
                await self._keep_client(authority, kept, client)
            self._verifier = secrets.token_urlsafe(64)
            self.redirect_uri = redirect_uri
            self.authorization_url = self._address(authority, client, redirect_uri, scope)
            announce()
            self.ready.set()
            try:
                await self._answered.wait()
                tokens = await self._redeemed(asker, authority, client, redirect_uri, scope)
            except SignInFailed as failure:
                if failure.error in _FORGOTTEN and client.way == "dynamic":
                    await self._drop_client(client)
                raise
            metadata, resource = authority.documents()
            await self._keep(
                Credentials(
                    binding=auth.binding,
                    issuer=authority.issuer,
                    tokens=tokens,
                    registration=client,
                    metadata=metadata,
                    resource=resource,
                )
            )

    async def _client(
        self, stack: AsyncExitStack, asker: Asker, authority: Authority, kept: Credentials | None, scope: str | None
    ) -> tuple[Registration, str]:
        """The client that we are, and the redirect address, at which somebody listens."""
        held = None if kept is None else kept.registration
        if (
            held is not None
            and held.way == "dynamic"
            and not held.expired
            and held.redirect_port
            and self.auth.client.fixed(authority, None) is None
            and self.port in (None, 0, held.redirect_port)
        ):
            try:
                port = await stack.enter_async_context(self.listener.at(held.redirect_port))
            except CannotListen:
                pass  # another port needs another registration
            else:
                return held, callback_address(port)
        port = await stack.enter_async_context(self.listener.at(self.port))
        address = callback_address(port)
        client = await registered(asker, authority, self.auth.client, redirect_uri=address, scope=scope)
        return client, address

    def _address(self, authority: Authority, client: Registration, redirect_uri: str, scope: str | None) -> str:
        challenge = hashlib.sha256((self._verifier or "").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "state": self.state,
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        if authority.resource_name is not None:
            query["resource"] = authority.resource_name
        if scope:
            query["scope"] = scope
            if "offline_access" in scope.split():
                # OpenID Connect Core, section 11: without it, the refresh token is not given.
                query["prompt"] = "consent"
        endpoint = authority.authorization_endpoint
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def _redeemed(
        self, asker: Asker, authority: Authority, client: Registration, redirect_uri: str, scope: str | None
    ) -> Tokens:
        answer, self._answer = self._answer, Returned()
        verifier, self._verifier = self._verifier, None
        if answer is None or verifier is None:
            raise AssertionError("an answer counts once")
        if answer.code is None:
            error = one_line(answer.error or "")
            told = one_line(answer.description or "", (self.state, verifier))
            raise SignInFailed(
                f"{host_of(authority.issuer)} did not sign us in: {error}{f' ({told})' if told else ''}",
                remedy="Start the sign-in again."
                if error in {"access_denied", "temporarily_unavailable", "server_error"}
                else "See what it says; the scope or the client may not be allowed.",
                error=error,
            )
        return await redeem(
            asker, authority, client, code=answer.code, verifier=verifier, redirect_uri=redirect_uri, scope=scope
        )

    # What is kept of it.

    async def _keep(self, credentials: Credentials) -> None:
        auth = self.auth
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            # The code is spent: what came for it is kept, whoever cancels now.
            async with auth.store.transaction():
                await trio.to_thread.run_sync(auth.store.write, credentials)
        auth.challenge = None
        auth.adopt(credentials)

    async def _keep_client(self, authority: Authority, kept: Credentials | None, client: Registration) -> None:
        """Keep a registration before anybody consents, so that a sign-in that is given up costs no second one."""
        auth = self.auth
        metadata, resource = authority.documents()
        async with auth.store.transaction():
            found = await trio.to_thread.run_sync(auth.store.load, auth.binding)
            if kept is None or found is None:
                found = Credentials(binding=auth.binding)
            credentials = evolve(
                found, issuer=authority.issuer, registration=client, metadata=metadata, resource=resource
            )
            await trio.to_thread.run_sync(auth.store.write, credentials)
        auth.adopt(credentials)

    async def _drop_client(self, client: Registration) -> None:
        auth = self.auth
        async with auth.store.transaction():
            found = await trio.to_thread.run_sync(auth.store.load, auth.binding)
            if found is not None and found.registration == client:
                found = evolve(found, registration=None)
                await trio.to_thread.run_sync(auth.store.write, found)
        auth.adopt(found)


def _refuse_without_pkce(authority: Authority) -> None:
    """Who lists the methods and leaves S256 out cannot do it; who lists none often can."""
    offered = authority.metadata and authority.metadata.code_challenge_methods_supported
    if offered and "S256" not in offered:
        raise SignInFailed(
            f"{host_of(authority.issuer)} does not know PKCE with S256, without which a code can be stolen",
            remedy="Tell whoever runs the authorization server.",
        )
