"""Whatever fits the OpenAPI document, and whatever does not, is asked of the API; every answer must be one it names.

Hypothesis makes the requests of the document (schemathesis). A fault of ours (500) is never an answer, nor is one
whose shape, status or type the document does not have. ``timeout``, ``server_gone`` and ``not_connected`` are answers:
they say how a server is. Without the token there is no answer at all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from openprogram_mcp.web.app import API, openapi_document

from ._api_thread import SERVERS, TOKEN, ApiThread, api_thread

# How schemathesis draws is its own affair.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

ABOUT_A_SERVER = {"timeout", "server_gone", "not_connected"}
"""Codes of answers with a status of 500 and above that are no faults of ours."""

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]

KNOWN = {
    "name": [*SERVERS, "good__echo", "with space"],
    "prompt": ["greet"],
    "uri": ["file:///a"],
    "sign_in": ["x"],
}
"""What is there, among the values for a parameter: else hardly a request would find anything."""


class _Nobody:
    """A manager of which only the names of its methods are asked for."""

    def __getattr__(self, name: str) -> Any:
        return name


def _document() -> dict[str, Any]:
    document = copy.deepcopy(openapi_document(API(_Nobody())))  # type: ignore[arg-type]  # no route is called
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                if parameter["name"] in KNOWN:
                    parameter["schema"] = {"anyOf": [{"enum": KNOWN[parameter["name"]]}, parameter["schema"]]}
    command = document["components"]["schemas"]["ServerConfig"]["properties"]["command"]
    command["anyOf"].insert(0, {"const": SERVERS["good"]["command"]})
    return document


DOCUMENT = _document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    operation["operationId"]: SCHEMA[path][method]
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
OPEN = {
    operation["operationId"]
    for path in DOCUMENT["paths"].values()
    for operation in path.values()
    if operation.get("security") == [{}]
}


CASES = [
    pytest.param(name, mode, id=f"{name}-{mode.value}")
    for name in OPERATIONS
    for mode in GenerationMode
    # It takes nothing, so that nothing can be wrong with a request.
    if (name, mode) != ("mcp.health", GenerationMode.NEGATIVE)
]

SESSION = requests.Session()
SESSION.trust_env = False


@pytest.fixture
def api(state_dir: Path) -> Iterator[ApiThread]:
    with api_thread(state_dir / "mcp_servers.json") as thread:
        yield thread


def _ask(api: ApiThread, name: str, mode: GenerationMode, examples: int, token: str | None) -> None:
    """Ask one operation that often, and judge the answers."""
    limits = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    sent = {} if token is None else {"Authorization": f"Bearer {token}"}

    @limits
    @given(OPERATIONS[name].as_strategy(generation_mode=mode))
    def judge(case: Any) -> None:
        reply = case.call(base_url=api.url, session=SESSION, headers=sent, timeout=30)
        if token is None:
            assert reply.status_code in (401, 403), reply.text
            return
        if reply.status_code >= 500:
            assert reply.json()["code"] in ABOUT_A_SERVER, reply.text
        assert "SECRET-of" not in reply.text
        case.validate_response(reply, checks=CHECKS)

    judge()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_answer_is_one_that_the_document_names(name: str, mode: GenerationMode, api: ApiThread) -> None:
    _ask(api, name, mode, 8, TOKEN)
    assert SESSION.get(f"{api.url}/healthz", timeout=30).json()["status"] == "ok"


@pytest.mark.long
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_answer_is_one_that_the_document_names_at_length(name: str, mode: GenerationMode, api: ApiThread) -> None:
    _ask(api, name, mode, 100, TOKEN)


def test_without_the_token_nothing_is_answered(api: ApiThread) -> None:
    before = SESSION.get(f"{api.url}/api/mcp/servers", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).json()
    for name in OPERATIONS:
        if name not in OPEN:
            _ask(api, name, GenerationMode.POSITIVE, 8, None)
            _ask(api, name, GenerationMode.NEGATIVE, 8, None)
    after = SESSION.get(f"{api.url}/api/mcp/servers", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).json()
    assert [row["name"] for row in after["servers"]] == [row["name"] for row in before["servers"]]
    assert json.dumps(sorted(OPEN)) == '["mcp.enter", "mcp.health"]'
