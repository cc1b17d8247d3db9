"""What a tool answered, in the form that a model reads.

Owns: `AgentToolResult`, the conversion of each kind of content block, and the budget over all of a result. Works on raw
JSON; it does no I/O, so that what is left out is described, never saved somewhere. Does not own: the call itself, and
what is an error of the connection rather than of the tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from ._image import Image, decoded_size, read_image
from ._json import clean_text, to_json, written_json

__all__ = ["MAX_CHARS", "AgentToolResult", "convert_call_result", "error_result", "protocol_error_result"]

MAX_CHARS: Final = 100_000
"""How many characters a result may have, over all its blocks and its structured content, unless told otherwise."""

_MAX_BLOCKS: Final = 64
"""Above so many blocks, neighbouring texts are joined: a model pays for every block."""

_MAX_IMAGE_CHARS: Final = 20 * 1024 * 1024
"""How much base64 all images of one result may have together; a request to a model API has its limit too."""

_MAX_URI: Final = 2000
_MAX_META: Final = 10_000

Block = dict[str, Any]

_NO_MESSAGE: Final = "The tool reported an error and gave no message."
_RPC_ERRORS: Final = {
    -32700: "parse error",
    -32600: "invalid request",
    -32601: "method not found",
    -32602: "invalid params",
    -32603: "internal error",
}


@frozen
class AgentToolResult:
    """What a tool answered.

    Args:
        content: Blocks ``{"type": "text", "text": …}`` and ``{"type": "image", "data": base64, "mimeType": …}``, no
            others.
        details: For programs: ``is_error``, ``mcp_server``, ``mcp_tool``, ``structured`` (the server's structured
            content or ``None``), and where it applies ``meta`` (a small ``_meta``), ``truncated``,
            ``structured_omitted``.
    """

    content: tuple[Block, ...]
    details: dict[str, Any]

    @property
    def is_error(self) -> bool:
        """Whether the tool, or the way to it, failed."""
        return bool(self.details.get("is_error"))

    @property
    def text(self) -> str:
        """All text blocks, a line break between them."""
        content = self.content
        if len(content) == 1 and content[0]["type"] == "text":
            text: str = content[0]["text"]
            return text
        return "\n".join(block["text"] for block in content if block["type"] == "text")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as the command line and the API give it."""
        return {
            "content": list(self.content),
            "text": self.text,
            "is_error": self.is_error,
            "details": self.details,
        }


def convert_call_result(
    result: Any, *, server: str = "", tool: str = "", max_chars: int = MAX_CHARS
) -> AgentToolResult:
    """Turn the result of ``tools/call`` into what an agent reads (specification: server/tools, "Tool Result").

    Never raises for what a server sent: a result that cannot be understood becomes an error result.

    Args:
        result: The ``result`` of the JSON-RPC answer, or an object of the SDK's.
        server: The server's name, for the details.
        tool: The tool's name on the wire, for the details.
        max_chars: The budget in characters over all texts and the structured content.
    """
    if type(result) is dict:
        # Most results are one small text. They are done here, without a second look.
        content = result.get("content")
        if type(content) is list and len(content) == 1 and "structuredContent" not in result and "_meta" not in result:
            block = content[0]
            if (
                type(block) is dict
                and block.get("type") == "text"
                and result.get("resultType", "complete") == "complete"
            ):
                text = block.get("text")
                is_error = result.get("isError", False)
                if (
                    type(text) is str
                    and len(text) <= max_chars
                    and type(is_error) is bool
                    and text.isascii()
                    and text
                    and not text.isspace()
                ):
                    return AgentToolResult(
                        (block if len(block) == 2 else {"type": "text", "text": text},),
                        {"is_error": is_error, "mcp_server": server, "mcp_tool": tool, "structured": None},
                    )
    elif not isinstance(result, Mapping):
        result = _plain(result)
        if result is None:
            return error_result("The server's answer to the call is not an object.", server=server, tool=tool)
    return _convert(result, server, tool, max_chars)


def error_result(message: str, *, server: str = "", tool: str = "", **details: Any) -> AgentToolResult:
    """A failure that an agent should read and can react to, as a result.

    Args:
        message: What happened; very long ones are cut in the middle.
        server: The server's name.
        tool: The tool's name on the wire.
        details: More keys for the details.
    """
    text = clean_text(message) if message.strip() else _NO_MESSAGE
    blocks, truncated = _within([_text(text)], MAX_CHARS)
    found = {"is_error": True, "mcp_server": server, "mcp_tool": tool, "structured": None, **truncated, **details}
    return AgentToolResult(tuple(blocks), found)


def protocol_error_result(
    code: Any, message: Any = None, data: Any = None, *, server: str = "", tool: str = ""
) -> AgentToolResult:
    """A JSON-RPC error that a server answered a call with, as a result with a readable text whatever is missing.

    Args:
        code: The error's code.
        message: Its message, which servers leave empty, or out.
        data: Its data.
        server: The server's name.
        tool: The tool's name on the wire.
    """
    said = message.strip() if isinstance(message, str) else ""
    kind = _RPC_ERRORS.get(code) if isinstance(code, int) else None
    label = f"error {code}" if kind is None or (said and said.lower() == kind) else f"error {code} ({kind})"
    text = f"The server answered with {label}"
    text += f": {said}" if said else " and no message."
    if data is not None:
        text += f"\n{data if isinstance(data, str) else to_json(data)}"
    return error_result(text, server=server, tool=tool, rpc_code=code)


def _plain(result: Any) -> Mapping[str, Any] | None:
    """An object of the SDK's as raw JSON. The SDK is not imported here, so it is known by its method."""
    dump = getattr(result, "model_dump", None)
    if dump is None:
        return None
    raw = dump(mode="json", by_alias=True)
    if not isinstance(raw, dict):
        return None
    if "structured_content" not in getattr(result, "model_fields_set", ("structured_content",)):
        # Not sent, which is not the same as null.
        raw.pop("structuredContent", None)
    return {key: value for key, value in raw.items() if value is not None or key == "structuredContent"}


def _convert(result: Mapping[str, Any], server: str, tool: str, max_chars: int) -> AgentToolResult:
    kind = result.get("resultType")
    if kind is not None and kind != "complete":
        # Specification 2026-07-28, basic/index: an unknown value makes the result invalid; none is the same as
        # complete.
        what = "asks for input that was not given" if kind == "input_required" else "is of an unknown kind"
        message = f"The server's answer {what} (resultType {_short(to_json(kind), 80)}); it is not shown."
        return error_result(message, server=server, tool=tool)

    is_error = _flag(result.get("isError"))
    blocks = _blocks(result.get("content"))
    structured: Any = None
    structured_text: str | None = None
    if "structuredContent" in result:
        structured = result["structuredContent"]
        structured_text, is_exact = written_json(structured)
        if not is_exact:
            structured = json.loads(structured_text)  # what is shown somewhere must be JSON that can be written
    usable = any(block["type"] != "text" or not block["text"].isspace() for block in blocks)
    if not usable and structured_text is not None and not (is_error and structured is None):
        blocks = [_text(structured_text)]
    if is_error and not any(block["type"] == "text" and not block["text"].isspace() for block in blocks):
        blocks.insert(0, _text(_NO_MESSAGE))

    if len(blocks) > _MAX_BLOCKS:
        blocks = _joined(blocks)
    details: dict[str, Any] = {
        "is_error": is_error,
        "mcp_server": server,
        "mcp_tool": tool,
        "structured": structured,
    }
    if structured_text is not None and not _fits(blocks, structured, structured_text, max_chars):
        details["structured"] = None
        details["structured_omitted"] = (
            f"structured content of {len(structured_text):,} characters left out: a result has at most {max_chars:,}"
        )
    blocks, truncated = _within(blocks, max_chars)
    details.update(truncated)
    meta = result.get("_meta")
    if isinstance(meta, dict) and meta:
        meta_text, is_exact = written_json(meta)
        if len(meta_text) <= _MAX_META:
            details["meta"] = meta if is_exact else json.loads(meta_text)
    return AgentToolResult(tuple(blocks), details)


def _flag(value: Any) -> bool:
    return bool(value) and value != "false"


def _blocks(content: Any) -> list[Block]:
    if content is None:
        return []
    if not isinstance(content, list):
        content = [content]
    blocks: list[Block] = []
    images = 0
    for raw in content:
        block = _block(raw)
        if block["type"] == "image":
            images += len(block["data"])
            if images > _MAX_IMAGE_CHARS:
                images -= len(block["data"])
                size = _bytes(decoded_size(block["data"]))
                block = _text(
                    f"[Image left out: the images of this result are too large together; {block['mimeType']}, {size}]"
                )
        elif not block["text"]:
            continue  # a model API refuses an empty text
        blocks.append(block)
    return blocks


def _block(raw: Any) -> Block:
    if isinstance(raw, str):
        return _text(clean_text(raw))
    if not isinstance(raw, dict):
        return _text(to_json(raw))
    kind = raw.get("type")
    if kind == "text" and isinstance(raw.get("text"), str):
        return _text(clean_text(raw["text"]))
    if kind == "image":
        return _image(raw)
    if kind == "audio":
        return _text(f"[Audio left out: {_mime(raw)}, {_bytes(decoded_size(raw.get('data')))}]")
    if kind == "resource_link" and isinstance(raw.get("uri"), str):
        return _text(_link(raw))
    if kind == "resource" and isinstance(raw.get("resource"), dict):
        return _text(_embedded(raw["resource"]) or to_json(raw))
    return _text(to_json(raw))


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _image(raw: Block) -> Block:
    found = read_image(raw.get("data"), raw.get("mimeType"))
    if isinstance(found, Image):
        return {"type": "image", "data": found.data, "mimeType": found.mime_type}
    size = "" if found.size is None else f", {_bytes(found.size)}"
    note = f"[Image left out: {found.why}; {_short(clean_text(found.mime_type), 100)}{size}]"
    return _text(note if found.text is None else f"{note}\n{found.text}")


def _link(raw: Block) -> str:
    parts = [f"[Resource link: {_uri(raw['uri'])}"]
    name = raw.get("title") or raw.get("name")
    if isinstance(name, str) and name != raw["uri"]:
        parts.append(_short(clean_text(name), 200))
    parts.append(_mime(raw))
    size = raw.get("size")
    parts.append(_bytes(int(size)) if isinstance(size, int | float) and 0 <= size < 1e18 else "size unknown")
    note = ", ".join(parts) + "]"
    description = raw.get("description")
    return f"{note}\n{clean_text(description)}" if isinstance(description, str) and description.strip() else note


def _embedded(resource: Block) -> str | None:
    where = _uri(resource.get("uri"))
    text = resource.get("text")
    if isinstance(text, str):
        return f"[Resource: {where}, {_mime(resource)}, {len(text):,} characters]\n{clean_text(text)}"
    if "blob" in resource:
        return f"[Resource, binary, left out: {where}, {_mime(resource)}, {_bytes(decoded_size(resource['blob']))}]"
    return None


def _uri(uri: Any) -> str:
    return _short(clean_text(uri), _MAX_URI) if isinstance(uri, str) and uri else "no address"


def _mime(raw: Block) -> str:
    mime = raw.get("mimeType")
    return _short(clean_text(mime), 100) if isinstance(mime, str) and mime else "unknown type"


def _bytes(size: int | None) -> str:
    return "size unknown" if size is None else f"{size:,} bytes"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2) :]}"


def _joined(blocks: list[Block]) -> list[Block]:
    joined: list[Block] = []
    texts: list[str] = []
    for block in blocks:
        if block["type"] == "text":
            texts.append(block["text"])
            continue
        if texts:
            joined.append(_text("\n".join(texts)))
            texts = []
        joined.append(block)
    if texts:
        joined.append(_text("\n".join(texts)))
    return joined


def _fits(blocks: list[Block], structured: Any, structured_text: str, max_chars: int) -> bool:
    """Whether the structured content has room beside the texts. It costs nothing where it is what the text says."""
    size = len(structured_text)
    shown = _length(blocks)
    if size + shown <= max_chars:
        return True
    if size > max_chars or shown > max_chars:
        return False
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if len(texts) != 1:
        return False
    try:
        return bool(json.loads(texts[0]) == structured)
    except (ValueError, RecursionError):
        return False


def _within(blocks: list[Block], limit: int) -> tuple[list[Block], dict[str, Any]]:
    """The blocks within the limit of characters: what stands in the middle of all texts together goes, images stay."""
    total = _length(blocks)
    if total <= limit:
        return blocks, {}
    note = f"\n[… {total:,} characters in all; the middle is left out, since the limit is {limit:,} …]\n"
    room = max(0, limit - len(note) - 2)  # the note may come to stand between two line breaks
    head = (room + 1) // 2
    tail = total - (room - head)
    kept: list[Block] = []
    start = 0
    noted = False
    for block in blocks:
        if block["type"] != "text":
            kept.append(block)
            continue
        text: str = block["text"]
        end = start + len(text)
        piece = text[: head - start] if start < head else ""
        if end > head and not noted:
            noted = True
            piece += note
        if end > tail:
            piece += text[max(0, tail - start) :]
        if piece:
            kept.append(_text(piece))
        start = end + 1  # the line break between texts
    return kept, {"truncated": {"total_chars": total, "max_chars": limit}}


def _length(blocks: list[Block]) -> int:
    """How many characters all texts have together, with the line breaks that stand between them in the end."""
    sizes = [len(block["text"]) for block in blocks if block["type"] == "text"]
    return sum(sizes) + max(0, len(sizes) - 1)
