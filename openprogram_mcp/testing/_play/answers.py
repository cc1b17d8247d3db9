"""What a well-behaved server answers where no script says otherwise, in both eras of the protocol.

Legacy: 2025-11-25 and older, ``initialize`` and sessions. Modern: 2026-07-28, ``server/discover`` and an envelope in
the ``_meta`` of every request.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any

META = "io.modelcontextprotocol/"
SUBSCRIPTION_ID = META + "subscriptionId"
CACHED = frozenset(
    {
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    }
)
ONLY_LEGACY = frozenset({"initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe"})
ONLY_MODERN = frozenset({"server/discover", "subscriptions/listen"})


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: dict[str, Any] = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Offer:
    """What the server offers, and the answers that follow from it. It changes while tools are shown and hidden."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.info: dict[str, Any] = script.get("info", {})
        self.instructions: str | None = script.get("instructions")
        self.tools: list[dict[str, Any]] = script.get("tools", [])
        self.resources: list[dict[str, Any]] = script.get("resources", [])
        self.prompts: list[dict[str, Any]] = script.get("prompts", [])
        self.hidden: set[str] = {tool["name"] for tool in self.tools if tool.get("hidden")}
        self.page_size: int | None = script.get("page_size")
        self.shuffled: bool = script.get("shuffled", False)
        self.lists = 0
        versions: list[str] = script.get("versions", [])
        self.modern = [version for version in versions if version >= "2026"]
        self.legacy = [version for version in versions if version < "2026"]
        self._capabilities: dict[str, Any] | None = script.get("capabilities")

    def capabilities(self) -> dict[str, Any]:
        """What was set, or what the tools, resources and prompts imply."""
        if self._capabilities is not None:
            return self._capabilities
        found: dict[str, Any] = {"tools": {"listChanged": True}}
        if self.resources:
            found["resources"] = {"subscribe": True, "listChanged": True}
        if self.prompts:
            found["prompts"] = {"listChanged": True}
        return found

    def tool(self, name: Any) -> dict[str, Any]:
        """The tool of this name.

        Raises:
            Refused: There is none, or it is hidden.
        """
        for tool in self.tools:
            if tool["name"] == name and name not in self.hidden:
                return tool
        raise Refused(-32602, f"Unknown tool: {name}")

    def is_modern(self, method: str, params: dict[str, Any]) -> bool:
        """Whether a request is to be served as one of 2026-07-28.

        Raises:
            Refused: This server does not serve the request's era, or the envelope is not complete.
        """
        meta = params.get("_meta")
        version = meta.get(META + "protocolVersion") if isinstance(meta, dict) else None
        if not self.modern:
            return False
        if method == "initialize":
            if self.legacy:
                return False
            raise Refused(
                -32022,
                "Unsupported protocol version",
                {"supported": self.modern, "requested": str(params.get("protocolVersion"))},
            )
        if version is None:
            if self.legacy and method not in ONLY_MODERN:
                return False
            raise Refused(-32602, "params._meta is missing the required envelope")
        if version not in self.modern:
            raise Refused(-32022, "Unsupported protocol version", {"supported": self.modern, "requested": version})
        return True

    def answer(self, method: str, params: dict[str, Any], modern: bool) -> dict[str, Any]:
        """The result of any request but ``tools/call`` and ``subscriptions/listen``.

        Raises:
            Refused: It is answered with an error.
        """
        if method in (ONLY_LEGACY if modern else ONLY_MODERN):
            raise Refused(-32601, "Method not found", method)
        result = self._answer(method, params)
        return self.complete(result, method) if modern else result

    def complete(self, result: dict[str, Any], method: str = "") -> dict[str, Any]:
        """A result with what 2026-07-28 requires of every result, where it is not there already."""
        done: dict[str, Any] = {"resultType": "complete", **result}
        if method in CACHED:
            done.setdefault("ttlMs", 0)
            done.setdefault("cacheScope", "private")
        meta = done.get("_meta")
        done["_meta"] = {META + "serverInfo": self.info, **(meta if isinstance(meta, dict) else {})}
        return done

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            asked = params.get("protocolVersion")
            return self._introduce({"protocolVersion": asked if asked in self.legacy else self.legacy[-1]}, info=True)
        if method == "server/discover":
            return self._introduce({"supportedVersions": self.modern}, info=False)
        if method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return {}
        if method == "tools/list":
            return self._list_tools(params)
        if method == "resources/list" and self.resources:
            return {"resources": [{k: v for k, v in item.items() if k != "contents"} for item in self.resources]}
        if method == "resources/templates/list" and self.resources:
            return {"resourceTemplates": []}
        if method == "resources/read" and self.resources:
            uri = params.get("uri")
            for item in self.resources:
                if item["uri"] == uri:
                    return {"contents": item["contents"]}
            raise Refused(-32602, "Resource not found", {"uri": uri})
        if method == "prompts/list" and self.prompts:
            return {"prompts": [{k: v for k, v in item.items() if k != "messages"} for item in self.prompts]}
        if method == "prompts/get" and self.prompts:
            for item in self.prompts:
                if item["name"] == params.get("name"):
                    return {"messages": item["messages"]}
            raise Refused(-32602, "Unknown prompt")
        raise Refused(-32601, "Method not found", method)

    def _introduce(self, result: dict[str, Any], *, info: bool) -> dict[str, Any]:
        result["capabilities"] = self.capabilities()
        if info:
            result["serverInfo"] = self.info
        if self.instructions is not None:
            result["instructions"] = self.instructions
        return result

    def _list_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        shown = [tool["listed"] for tool in self.tools if tool["name"] not in self.hidden]
        if self.shuffled and shown:
            # A rotation that differs at each listing: no order twice in a row, and the same in every run.
            turn = self.lists % len(shown)
            shown = shown[turn:] + shown[:turn]
            self.lists += 1
        if self.page_size is None:
            return {"tools": shown}
        cursor = params.get("cursor")
        try:
            first = 0 if cursor is None else int(cursor)
        except (TypeError, ValueError):
            raise Refused(-32602, "Invalid cursor") from None
        page: dict[str, Any] = {"tools": shown[first : first + self.page_size]}
        if first + self.page_size < len(shown):
            page["nextCursor"] = str(first + self.page_size)
        return page
