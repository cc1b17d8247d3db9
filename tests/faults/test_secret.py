"""SECRET cases: what a server was trusted with does not come back out through it."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from openprogram_mcp.events import ToolCallEnded
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of
from tests.faults._host import hosting

_TOKEN = "hush/4711+x=unlikely"
_FORMS = (_TOKEN, base64.b64encode(_TOKEN.encode()).decode(), quote(_TOKEN, safe=""))
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def _shows(text: str) -> list[str]:
    return [form for form in _FORMS if form in text]


@ERAS
async def test_secret_01_what_a_tool_answers_holds_no_credential_and_keeps_what_the_model_needs(era: Any) -> None:
    said = f"token {_FORMS[0]} base64 {_FORMS[1]} url {_FORMS[2]} project zeppelin-works"
    fake = FakeServer(era=era)
    fake.tool("text", do.reply(said))
    fake.tool("structured", do.result({"content": [], "structuredContent": {"env": {_TOKEN: [said]}}}))
    fake.tool("error", do.result({"content": [{"type": "text", "text": said}], "isError": True}))
    fake.tool("refusal", do.fail(-32000, said, {"env": said}))
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + _TOKEN.encode()).decode()
    fake.tool("file", do.result({"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": picture}}]}))
    async with hosting({"f": fake.config(env={"API_KEY": _TOKEN, "PROJECT": "zeppelin-works"})}) as manager:
        for tool in ("text", "structured", "error", "refusal"):
            result = await manager.call_tool(f"f__{tool}")
            shown = repr((result.content, result.details, result.text))
            assert _shows(shown) == [], tool
            assert "zeppelin-works" in shown, tool
            assert "********" in shown, tool
        await manager.call_tool("f__file")
        ended = events_of(manager.events, ToolCallEnded)
        assert len(ended) == 5
        assert _shows(repr([event.payload() for event in ended])) == []
        assert "zeppelin-works" not in repr([event.payload() for event in ended]), "people see none of the secrets"
