"""Signing the requests to one server: which token they carry, and how it is renewed.

While the token is valid a request costs nothing more and waits for nobody. When it has expired, or the server does not
take it any more, it is renewed once, whoever asks: in a task that no caller's cancellation ends, since a token that was
exchanged and not kept is lost; and under a lock between processes, in which what is kept is read again, so that all but
one find the work done. Before it expires it is renewed beside the requests that still carry the old one.

That nobody answered is no revocation: the requests fail, nothing is forgotten. What the authorization server rejects is
marked as rejected, and only if it is still what is kept.

It takes the place of the SDK's ``OAuthClientProvider``, on whose parts it rests.

MCP specification: basic/authorization.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import httpx2
import trio
from attrs import define, evolve, field, frozen
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth_utils import resource_url_from_server_url

from ..errors import OpenProgramMCPError, ServerFailed, StorageError
from ..transports._http_client import NotSigned
from ._asking import Asker, SignInFailed, asking
from ._clients import Client
from ._discovery import Authority, discover, known_authority, remembered
from ._dpop import ALGORITHM, Prover, asks_for_dpop, asks_for_nonce, new_key
from ._grants import Assertion, ask_without_human, exchange, renew, scope_to_ask, united
from .tokens import Binding, Credentials, Tokens, TokenStore, same_issuer

__all__ = ["Challenge", "ServerAuth", "challenge_in"]

logger = logging.getLogger(__name__)

_RENEWAL_SECONDS: Final = 100.0
# What is on its way when the program ends may take so long: the token it brings may be the only one that is left.
_LAST_SECONDS: Final = 2.0
# After a renewal beside the requests has failed, nobody tries again for so long.
_PAUSE_SECONDS: Final = 10.0
# How often more is asked for because a server says that a token does not reach far enough.
_STEPS: Final = 3


Consent = Callable[[], Awaitable[str]]
"""Gives an organisation's consent: a fresh assertion of its identity provider."""


@frozen
class Challenge:
    """What a server has said when it did not let us in.

    Args:
        resource_metadata: Where it says more about itself.
        scope: What it wants.
        lacks_scope: The token is good, but does not reach far enough.
        dpop: It wants tokens that are bound to a key.
    """

    resource_metadata: str | None = None
    scope: str | None = None
    lacks_scope: bool = False
    dpop: bool = False


def challenge_in(response: httpx2.Response) -> Challenge | None:
    """The challenge in a refusal; ``None`` where it is none of signing in."""
    lacks_scope = response.status_code == 403
    if response.status_code != 401 and not (
        lacks_scope and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    ):
        return None
    return Challenge(
        resource_metadata=extract_field_from_www_auth(response, "resource_metadata"),
        scope=extract_field_from_www_auth(response, "scope"),
        lacks_scope=lacks_scope,
        dpop=asks_for_dpop(response),
    )


@define(eq=False)
class _Renewal:
    """One renewal, and those who wait for it."""

    stale: str | None
    done: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    tokens: Tokens | None = field(default=None, repr=False)
    failure: OpenProgramMCPError | None = None


class ServerAuth(httpx2.Auth):
    """Signs the requests to one server with what was kept of a sign-in, or with what the client gets for itself.

    Args:
        server: Its name.
        binding: What its credentials belong to.
        store: Where they are kept.
        client: Who the configuration says that we are.
        make_client: Makes an HTTP client that trusts whom the server's own does.
        post: Runs a job in a task that outlives the caller.
        grant: How tokens are had: by a human's consent (``code``), or by ourselves (``credentials``).
        assertion: Signs for the client, instead of a secret.
        organisation: The issuer that an organisation's consent is for, and what gives that consent.
        on_change: Called, synchronously, when what is known of the sign-in has changed.
    """

    def __init__(
        self,
        server: str,
        *,
        binding: Binding,
        store: TokenStore,
        client: Client,
        make_client: Callable[[], Awaitable[httpx2.AsyncClient]],
        post: Callable[[Callable[[], Awaitable[None]]], None],
        grant: Literal["code", "credentials"] = "code",
        assertion: Assertion | None = None,
        organisation: tuple[str, Consent] | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.server = server
        self.binding = binding
        self.store = store
        self.client = client
        self.make_client = make_client
        self.grant = grant
        self.challenge: Challenge | None = None
        """What the server said last, for the next sign-in."""
        self.organisation = organisation
        self.fleeting = False
        """Whether it is only tried, so that nothing that comes of it is kept."""
        self._assertion = assertion
        self._post = post
        self._on_change = on_change
        self._credentials: Credentials | None = None
        self._loaded = False
        self._renewal: _Renewal | None = None
        self._quiet_until = 0.0
        self._steps = 0
        self._prover = Prover()
        # The access token that the server itself did not take, though nothing is known against it.
        self._spurned: str | None = None

    @property
    def credentials(self) -> Credentials | None:
        """What is known of the sign-in."""
        return self._credentials

    @property
    def state(self) -> Literal["not_logged_in", "logged_in", "expired"]:
        """How far the sign-in gets us."""
        kept = self._credentials
        if kept is None or kept.tokens is None:
            return "not_logged_in"
        return "expired" if kept.tokens.access_token == self._spurned else kept.state

    def adopt(self, credentials: Credentials | None) -> None:
        """Take what is kept now."""
        changed = credentials != self._credentials
        self._credentials, self._loaded = credentials, True
        if changed:
            self._steps = 0
            self._on_change()

    async def load(self) -> Credentials | None:
        """Read what is kept.

        Raises:
            StorageError: It cannot be read.
        """
        self.adopt(await trio.to_thread.run_sync(self.store.load, self.binding))
        return self._credentials

    def keep(self) -> None:
        """It is in force: what has come of it while it was only tried is kept, in the place of what was there."""
        if self.fleeting:
            self.fleeting = False
            with suppress(OpenProgramMCPError):  # the program ends
                self._post(self._keep_now)

    async def _keep_now(self) -> None:
        try:
            async with self.store.transaction():
                if self._credentials is not None:
                    await trio.to_thread.run_sync(self.store.write, self._credentials)
                elif await trio.to_thread.run_sync(self.store.load, self.binding) is None:
                    await trio.to_thread.run_sync(self.store.remove)
        except StorageError as error:
            logger.warning("%s: what is kept of its sign-in cannot be changed: %s", self.server, error.message)

    def hurry(self) -> None:
        """The program ends: what is on its way has little time left."""
        if self._renewal is not None:
            scope = self._renewal.scope
            scope.deadline = min(scope.deadline, trio.current_time() + _LAST_SECONDS)

    # A request.

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with a token, and once more where a newer one, or one that reaches further, may help."""
        sent = self._at_hand() or await self._usable()
        tried: set[bool] = set()
        while True:
            self._sign(request, sent)
            response = yield request
            if self._prover.learn(response) and asks_for_nonce(response) and sent is not None and sent.dpop_key:
                # The token is good; the proof is made anew.
                self._sign(request, sent)
                response = yield request
                self._prover.learn(response)
            challenge = challenge_in(response)
            if challenge is None:
                return
            self.challenge = challenge
            newer = None
            if challenge.lacks_scope not in tried:
                tried.add(challenge.lacks_scope)
                if challenge.lacks_scope:
                    newer = await self._reaching_further(challenge)
                else:
                    newer = await self._renewed(None if sent is None else sent.access_token)
            if newer is None or newer == sent:
                break
            sent = newer
        if not challenge.lacks_scope:
            self._spurned = None if sent is None else sent.access_token
            self._on_change()

    def _sign(self, request: httpx2.Request, tokens: Tokens | None) -> None:
        if tokens is None:
            return
        if tokens.dpop_key is not None:
            self._prover.sign(request, tokens.access_token, tokens.dpop_key)
            return
        request.headers["Authorization"] = f"Bearer {tokens.access_token}"
        request.headers.pop("DPoP", None)

    def bound(self, authority: Authority) -> Authority:
        """An authority, with a key for the tokens that it gives, where both it and the server know of that."""
        wanted = authority.takes_bound or (self.challenge is not None and self.challenge.dpop)
        return evolve(authority, key=new_key()) if wanted and authority.binds(ALGORITHM) else authority

    def _at_hand(self) -> Tokens | None:
        """The token, if it can be used as it is; no checkpoint in between, so that requests go side by side."""
        kept = self._credentials
        if kept is None or kept.tokens is None or not kept.tokens.valid():
            return None
        if kept.tokens.ages() and self._renewal is None and self._renewable(kept) and time.time() > self._quiet_until:
            self._begin(kept.tokens.access_token)
        return kept.tokens

    def _renewable(self, kept: Credentials | None) -> bool:
        if self.grant == "credentials":
            return True
        return kept is not None and not kept.rejected and kept.tokens is not None and bool(kept.tokens.refresh_token)

    async def _usable(self) -> Tokens | None:
        """A valid token, if one can be had without a human and without a challenge."""
        if not self._loaded:
            try:
                await self.load()
            except StorageError as error:
                raise NotSigned(error) from error
            at_hand = self._at_hand()
            if at_hand is not None:
                return at_hand
        kept = self._credentials
        if kept is None or kept.tokens is None or not self._renewable(kept):
            return None
        return await self._renewed(kept.tokens.access_token)

    # Renewing.

    async def _renewed(self, stale: str | None) -> Tokens | None:
        """A token other than ``stale``; ``None`` when there is none to be had without a human.

        Raises:
            NotSigned: Nobody can tell now.
        """
        renewal = self._renewal or self._begin(stale)
        await renewal.done.wait()
        if renewal.failure is not None:
            raise NotSigned(renewal.failure) from renewal.failure
        return renewal.tokens

    def _begin(self, stale: str | None, challenge: Challenge | None = None) -> _Renewal:
        renewal = self._renewal = _Renewal(stale)
        try:
            self._post(partial(self._run, renewal, challenge))
        except OpenProgramMCPError as error:  # the program ends
            self._renewal, renewal.failure = None, error
            renewal.done.set()
        return renewal

    async def _run(self, renewal: _Renewal, challenge: Challenge | None) -> None:
        scope = renewal.scope
        scope.shield = True
        scope.deadline = min(scope.deadline, trio.current_time() + _RENEWAL_SECONDS)
        try:
            with scope:
                renewal.tokens = await self._renew(renewal.stale, challenge)
            if scope.cancelled_caught:
                renewal.failure = SignInFailed("nobody answered in time", server=self.server, transient=True)
        except OpenProgramMCPError as error:
            renewal.failure = error
        finally:
            if renewal.failure is not None:
                self._quiet_until = time.time() + _PAUSE_SECONDS
            self._renewal = None
            renewal.done.set()

    async def _renew(self, stale: str | None, challenge: Challenge | None) -> Tokens | None:
        async with self.store.transaction():
            kept = await self.load()
            tokens = None if kept is None else kept.tokens
            if tokens is not None and tokens.access_token != stale and tokens.valid() and not tokens.ages():
                return tokens  # somebody else was here before us
            if self.grant == "credentials":
                return await self._ask_without_human(kept, challenge)
            if kept is None or tokens is None or not self._renewable(kept):
                return None
            async with asking(self.make_client) as asker:
                authority = remembered(kept) or await self._discovered(asker, kept)
                client = kept.registration
                if client is None:
                    return None
                try:
                    new = await renew(asker, evolve(authority, key=tokens.dpop_key), client, tokens)
                except SignInFailed as failure:
                    if failure.transient or failure.error is None:
                        raise
                    await self._reject(kept, failure)
                    return None
            await self._keep(evolve(kept, tokens=new, rejected=False))
            return new

    async def _reject(self, kept: Credentials, failure: SignInFailed) -> None:
        """The authorization server does not take the refresh token any more. What is kept is what it was shown."""
        logger.info("%s: the sign-in has ended: %s", self.server, failure.message)
        client = kept.registration
        if (
            failure.error in ("invalid_client", "unauthorized_client")
            and client is not None
            and client.way == "dynamic"
        ):
            client = None  # it has forgotten us
        await self._keep(evolve(kept, registration=client, rejected=True))

    async def _keep(self, credentials: Credentials) -> None:
        if self.fleeting:
            self.adopt(credentials)
            return
        try:
            await trio.to_thread.run_sync(self.store.write, credentials)
        except StorageError as error:
            # The old one is spent; this run still has the new one.
            logger.error("%s: its sign-in is renewed but cannot be kept: %s", self.server, error.message)  # noqa: TRY400 - no traceback: it is no fault of ours
        self.adopt(credentials)

    async def _discovered(self, asker: Asker, kept: Credentials | None) -> Authority:
        issuer = None if kept is None else kept.issuer
        authority = await discover(
            asker,
            self.binding.server_url,
            resource_metadata=None if self.challenge is None else self.challenge.resource_metadata,
            known_issuer=issuer,
        )
        if issuer is not None and not same_issuer(issuer, authority.issuer):
            raise moved(self.server, issuer, authority)
        return authority

    # Without a human.

    async def _ask_without_human(self, kept: Credentials | None, challenge: Challenge | None) -> Tokens:
        if self.organisation is not None:
            return await self._exchange(self.organisation, kept, challenge)
        async with asking(self.make_client) as asker:
            authority = (None if kept is None else remembered(kept)) or await self._discovered(asker, kept)
            client = self.client.fixed(authority, None)
            if client is None:
                raise SignInFailed("it has no client id", remedy="Give it one in 'auth'.", server=self.server)
            before = None if challenge is None or kept is None or kept.tokens is None else kept.tokens.scope
            scope = scope_to_ask(
                authority,
                configured=self.binding.scope,
                challenged=None if self.challenge is None else self.challenge.scope,
                before=united(before, None if challenge is None else challenge.scope),
            )
            authority = self.bound(authority)
            tokens = await ask_without_human(asker, authority, client, scope=scope, assertion=self._assertion)
        metadata, resource = authority.documents()
        await self._keep(
            Credentials(
                binding=self.binding, issuer=authority.issuer, tokens=tokens, metadata=metadata, resource=resource
            )
        )
        return tokens

    async def _exchange(
        self, organisation: tuple[str, Consent], kept: Credentials | None, challenge: Challenge | None
    ) -> Tokens:
        issuer, consent = organisation
        before = None if challenge is None or kept is None or kept.tokens is None else kept.tokens.scope
        scope = united(self.binding.scope, before, None if challenge is None else challenge.scope)
        async with asking(self.make_client) as asker:
            authority = self.bound(await known_authority(asker, self.binding.server_url, issuer))
            client = self.client.fixed(authority, None)
            if client is None:
                raise SignInFailed("it has no client id", remedy="Give it one in 'auth'.", server=self.server)
            resource = resource_url_from_server_url(self.binding.server_url)
            tokens = await exchange(asker, authority, client, assertion=await consent(), resource=resource, scope=scope)
        await self._keep(Credentials(binding=self.binding, issuer=authority.issuer, tokens=tokens))
        return tokens

    # A token that does not reach far enough.

    async def _reaching_further(self, challenge: Challenge) -> Tokens | None:
        """A token with what the server has just asked for, where no human has to consent; else a note for the next."""
        kept = self._credentials
        granted = None if kept is None or kept.tokens is None else kept.tokens.scope
        wanted = united(granted, challenge.scope)
        if kept is None or kept.tokens is None or wanted == united(granted) or self._steps >= _STEPS:
            return None
        self._steps += 1
        steps = self._steps
        if self.grant == "credentials":
            renewal = self._renewal or self._begin(kept.tokens.access_token, challenge)
            await renewal.done.wait()
            self._steps = steps
            return None if renewal.failure is not None else renewal.tokens
        if wanted != kept.wanted_scope:
            await self._note(united(kept.wanted_scope, wanted))
        return None

    async def _note(self, wanted: str | None) -> None:
        try:
            async with self.store.transaction():
                kept = await self.load()
                if kept is not None and kept.wanted_scope != wanted:
                    await self._keep(evolve(kept, wanted_scope=wanted))
        except StorageError as error:
            logger.warning("%s: what it wants cannot be kept: %s", self.server, error.message)


def moved(server: str, before: str, authority: Authority) -> ServerFailed:
    """A given client is not shown to an authorization server other than the one it was used with."""
    return SignInFailed(
        f"it names another authorization server than before: {authority.issuer}, not {before}",
        remedy=f"If that is meant, forget the old one: openprogram-mcp auth {server} --forget.",
        server=server,
    )
