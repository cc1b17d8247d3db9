"""The texts of what a server answers, kept within a limit, where the answer is handed on as it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["limit_texts"]


def limit_texts(answer: Mapping[str, Any], max_chars: int) -> dict[str, Any]:
    """The result of ``resources/read`` or ``prompts/get`` with its texts within a limit.

    Whole texts are kept as long as there is room, then the beginning of one, with a note; bytes are left alone, for
    half of them is nothing.

    Args:
        answer: The result. It is not changed.
        max_chars: The limit in characters over all its texts.
    """
    if sum(len(holder["text"]) for holder in _holders(answer)) <= max_chars:
        return dict(answer)
    copied: dict[str, Any] = _copied(answer)
    room = max_chars
    for holder in _holders(copied):
        text: str = holder["text"]
        if len(text) > room:
            holder["text"] = (
                f"{text[:room]}\n[… {len(text):,} characters in all; the rest is left out, "
                f"since the limit is {max_chars:,} …]"
            )
        room = max(0, room - len(text))
    return copied


def _holders(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects of an answer that hold a text, in order."""
    found: list[Any] = []
    for key in ("contents", "messages"):
        items = answer.get(key)
        found.extend(items if isinstance(items, list) else [])
    for item in found:
        content = item.get("content", item) if isinstance(item, dict) else None
        for block in content if isinstance(content, list) else [content]:
            holder = block.get("resource", block) if isinstance(block, dict) else None
            if isinstance(holder, dict) and isinstance(holder.get("text"), str):
                yield holder


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
