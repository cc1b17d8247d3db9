"""The shapes of the management API's requests and answers, as attrs classes: the OpenAPI document is made from them.

Answers are made by :mod:`.views` as plain JSON; a test holds these classes to what it makes. Requests are read into
them.
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen

from ..status import ExitWay, Phase

__all__ = [
    "Auth",
    "AuthAnswer",
    "CallRequest",
    "CallResult",
    "Completion",
    "CompletionRequest",
    "ConfigLocation",
    "EntryLink",
    "EventPage",
    "EventRow",
    "Health",
    "LastCallRow",
    "LogLine",
    "LogPage",
    "PendingAuth",
    "Problem",
    "PromptList",
    "PromptRequest",
    "PromptResult",
    "ResourceContents",
    "ResourceList",
    "Root",
    "RootList",
    "ServerDetail",
    "ServerList",
    "ServerRow",
    "ShortServer",
    "ToolList",
    "ToolRow",
    "ToolSchema",
]

State = Literal[
    "disabled",
    "pending",
    "starting",
    "connected",
    "reconnecting",
    "failed",
    "needs_auth",
    "needs_client_registration",
    "disconnected",
]


@frozen
class LastCallRow:
    """The last call of a server's tool that has ended; ``seconds`` is its duration."""

    tool: str
    at: str
    outcome: str
    seconds: float


@frozen
class Auth:
    """How a server is signed in to."""

    kind: str
    state: Literal["unsupported", "not_logged_in", "logged_in", "expired"]


@frozen(kw_only=True)
class ServerRow:
    """A server's status. Times are RFC 3339 in UTC, durations are seconds."""

    name: str
    type: str
    enabled: bool
    description: str | None
    status: State
    ready: bool
    error: str | None
    error_kind: Literal["transient", "needs_reauth", "fatal"] | None
    phase: Phase | None
    exit_code: int | None
    exit_way: ExitWay | None
    stderr: list[str]
    remedy: str | None
    attempt: int
    retry_at: str | None
    since: str
    generation: int
    tool_count: int
    tools: list[str]
    protocol_version: str | None
    server_info: dict[str, Any] | None
    pid: int | None
    uptime_seconds: float | None
    processes: int
    in_flight: int
    queued: int
    last_call: LastCallRow | None
    auth: Auth
    authorization_url: str | None
    config_error: str | None
    warnings: list[str]


@frozen
class ToolSchema:
    """A tool as its server describes it, beside the full name that calls it."""

    name: str
    wire_name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any]
    action: Literal["allow", "ask", "deny"]


@frozen
class SkillFileRow:
    """A file of a skill."""

    uri: str
    digest: str
    size: int


@frozen
class SkillRow:
    """A skill that a server lists. ``files`` is null where its content is made anew each time, unverifiable."""

    uri: str
    name: str
    description: str
    frontmatter: dict[str, Any]
    files: list[SkillFileRow] | None


@frozen(kw_only=True)
class ServerDetail(ServerRow):
    """A server's status with its configuration, secrets masked, its tools, and its skills."""

    config: dict[str, Any] | None
    tool_schemas: list[ToolSchema]
    skills: list[SkillRow]


@frozen
class ServerList:
    """Every server, in the order of the file; ``version`` rises with every change.

    ``config_error`` says why what the configuration file says now is not in force. ``processes_owned`` is how many
    processes they have together; ``processes_leaked`` is 0, or there is a defect.
    """

    version: int
    config_error: str | None
    processes_owned: int
    processes_leaked: int
    servers: list[ServerRow]


@frozen
class ToolRow:
    """A tool that can be called; one that is ``waiting`` when its server, away for a moment, is back."""

    name: str
    server: str | None
    wire_name: str | None
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any]
    deferred: bool
    waiting: bool
    action: Literal["allow", "ask", "deny"]


@frozen
class ToolList:
    """Every tool, sorted by name; ``version`` rises with every change."""

    version: int
    tools: list[ToolRow]


@frozen
class CallRequest:
    """A call's arguments, its limit in seconds (``null``: the server's own), and a name for it in the events."""

    arguments: dict[str, Any] = field(factory=dict)
    timeout_seconds: float | None = None
    call_id: str | None = None


@frozen
class CallResult:
    """A call's answer; ``is_error`` is the tool's own word."""

    call_id: str
    content: list[dict[str, Any]]
    text: str
    is_error: bool
    details: dict[str, Any]


@frozen
class ResourceList:
    """A server's resources and the templates of others, as MCP gives them."""

    resources: list[dict[str, Any]]
    resourceTemplates: list[dict[str, Any]]  # noqa: N815 - as it stands in MCP


@frozen
class ResourceContents:
    """A resource's contents, as MCP gives them; there may be more keys."""

    contents: list[dict[str, Any]]


@frozen
class PromptList:
    """A server's prompts, as MCP gives them."""

    prompts: list[dict[str, Any]]


@frozen
class PromptRequest:
    """The arguments of a prompt, all of them texts."""

    arguments: dict[str, str] = field(factory=dict)


@frozen
class PromptResult:
    """A prompt's messages, as MCP gives them; there may be more keys."""

    messages: list[dict[str, Any]]


@frozen
class CompletionRequest:
    """What is to be completed, as MCP has it: ``argument`` has ``name`` and ``value``, ``context`` other arguments."""

    ref: dict[str, Any]
    argument: dict[str, str]
    context: dict[str, Any] | None = None


@frozen
class Completion:
    """What an argument may be, as MCP gives it; there may be more keys."""

    completion: dict[str, Any]


@frozen
class PendingAuth:
    """A sign-in that waits for somebody: where to go, what its answer is told by, and until when it waits."""

    server: str
    authorization_url: str
    state: str
    expires_at: str
    redirect_uri: str


@frozen
class AuthAnswer:
    """What an authorization server has answered: the code and its state, or the whole address of the browser.

    A code without a state is for the one sign-in of the server that waits.
    """

    code: str | None = None
    state: str | None = None
    redirect_url: str | None = None


@frozen
class EventRow:
    """An event; each type has more keys."""

    id: int
    type: str
    time: str
    server: str | None
    directory: str | None


@frozen
class EventPage:
    """Events for a client that polls; ask again with ``since`` set to ``next``."""

    events: list[EventRow]
    next: int
    missed: int


@frozen
class LogLine:
    """A line that a server has logged or written to its standard error."""

    id: int
    time: str
    server: str | None
    level: str
    logger: str | None
    text: str


@frozen
class LogPage:
    """Log lines, the oldest first."""

    lines: list[LogLine]


@frozen
class ConfigLocation:
    """Where the configuration is."""

    path: str
    exists: bool


@frozen
class ShortServer:
    """A server in short; ``error`` says why it is not connected."""

    name: str
    connected: bool
    tools: list[str]
    error: str | None


@frozen
class Root:
    """A folder that servers are told of (specification: client/roots)."""

    uri: str
    name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as it is stored."""
        return {"uri": self.uri} if self.name is None else {"uri": self.uri, "name": self.name}


@frozen
class RootList:
    """The roots."""

    roots: list[Root]


@frozen
class EntryLink:
    """A link that lets a browser in, once, until ``expires_at``."""

    url: str
    expires_at: str


@frozen
class Health:
    """How many servers are in which state."""

    status: Literal["ok"]
    servers: dict[str, int]


@frozen
class Problem:
    """An error (RFC 9457); programs decide by ``code``."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str | None
    path: str | None
    server: str | None
