"""The client that the conformance suite drives: a program over ``open_manager()`` and nothing but the public API.

The suite gives the server's URL as the last argument, the scenario's name in ``MCP_CONFORMANCE_SCENARIO``, and what a
user would have to know (a client's id and secret, calls that are to be made) as JSON in ``MCP_CONFORMANCE_CONTEXT``.
All of that becomes a configuration, and the tools are used as an agent uses them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import trio

from openprogram_mcp import MCPManager, OpenProgramMCPError, open_manager

SERVER = "server"
MOST_SIGN_INS = 2
DOCUMENT = "https://conformance-test.local/client-metadata.json"
Play = Callable[[MCPManager, dict[str, Any]], Awaitable[None]]


async def call(manager: MCPManager, wire_name: str, arguments: dict[str, Any] | None = None) -> None:
    """Call a tool by the name that its server gave it."""
    for tool, remote in manager.tool_records(SERVER):
        if remote.name == wire_name:
            result = await manager.call_tool(tool.name, arguments or {})
            print(f"{wire_name}: {result.text}")
            return
    raise LookupError(f"the server does not offer {wire_name}")


async def look(manager: MCPManager, _context: dict[str, Any]) -> None:
    """The tools were listed when the server came up."""
    print([tool.name for tool in manager.tools()])


async def add_numbers(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Call the one tool with what fits."""
    await call(manager, "add_numbers", {"a": 5, "b": 3})


async def use_everything(manager: MCPManager, context: dict[str, Any]) -> None:
    """Call every tool, read every resource, get every prompt."""
    await use_all(manager, context)
    for resource in await manager.resources(SERVER):
        await manager.read_resource(SERVER, resource["uri"])
    for prompt in await manager.prompts(SERVER):
        await manager.get_prompt(SERVER, prompt["name"])


async def reconnect(manager: MCPManager, _context: dict[str, Any]) -> None:
    """A call whose stream ends before its answer."""
    await call(manager, "test_reconnection")


async def elicit(manager: MCPManager, _context: dict[str, Any]) -> None:
    """A call in which the server asks its user for something."""
    await call(manager, "test_client_elicitation_defaults")


async def rounds(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Calls whose result is a request for input, and one between them that has nothing to do with those."""
    for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await call(manager, f"test_mrtr_{name}")


async def replay(manager: MCPManager, context: dict[str, Any]) -> None:
    """The calls that the suite asks for."""
    for wanted in context["toolCalls"]:
        await call(manager, wanted["name"], wanted.get("arguments"))


async def echo_schema(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Give a tool's schema back as it came."""
    focal = next(remote for _, remote in manager.tool_records(SERVER) if remote.name == "json_schema_2020_12_tool")
    await call(manager, "json_schema_echo", {"schema": focal.input_schema})


async def list_skills(manager: MCPManager, _context: dict[str, Any]) -> None:
    """See which skills there are."""
    for skill in await manager.skills(SERVER):
        print(f"{skill.name}: {skill.description}")


async def load_skills(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Load every skill, and read its files."""
    for skill in await manager.skills(SERVER):
        loaded = await manager.load_skill(skill)
        print(loaded.text)
        for file in skill.files or ():
            await manager.read_skill_file(skill, file.uri)


async def use_all(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Call every tool that is offered, each with something for what it requires."""
    values: dict[str, Any] = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}
    for tool in manager.tools():
        properties = tool.parameters.get("properties", {})
        arguments = {
            name: values.get(properties.get(name, {}).get("type"), "x") for name in tool.parameters.get("required", [])
        }
        try:
            print(tool.name, (await manager.call_tool(tool.name, arguments)).text)
        except OpenProgramMCPError as error:
            # One that refuses costs only itself.
            print(tool.name, error.message)


async def use_first(manager: MCPManager, _context: dict[str, Any]) -> None:
    """Call the first tool, whatever it is; where the server refuses it, consent to more and call it again."""
    for sign_ins in range(MOST_SIGN_INS + 1):
        if sign_ins:
            await sign_in(manager)
        result = await manager.call_tool(manager.tools()[0].name)
        print(result.text)
        if not result.is_error:
            return


async def sign_in(manager: MCPManager) -> None:
    """Go to the address of a sign-in with a browser, which is sent back to where the sign-in waits for it."""
    pending = await manager.start_auth(SERVER)
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        page = await browser.get(pending.authorization_url)
    if page.is_error:
        print(f"the browser shows: {page.text}", file=sys.stderr)
        manager.cancel_auth(pending.state)
    await manager.wait_auth(SERVER)


async def authority_of(browser: httpx2.AsyncClient, url: str) -> str:
    """The authorization server of a server, which its user knows; the suite does not say it."""
    place = httpx2.URL(url)
    found = await browser.get(place.copy_with(path=f"/.well-known/oauth-protected-resource{place.path}"))
    return str(found.json()["authorization_servers"][0])


async def consent_of_organisation(browser: httpx2.AsyncClient, url: str, issuer: str, context: dict[str, Any]) -> str:
    """What the other program does that keeps a fresh assertion in a file: asks the identity provider (RFC 8693)."""
    kind = "urn:ietf:params:oauth"
    form = {
        "grant_type": f"{kind}:grant-type:token-exchange",
        "requested_token_type": f"{kind}:token-type:id-jag",
        "subject_token": context["idp_id_token"],
        "subject_token_type": f"{kind}:token-type:id_token",
        "audience": issuer,
        "resource": url,
        "client_id": context["idp_client_id"],
    }
    answer = await browser.post(context["idp_token_endpoint"], data=form)
    return str(answer.json()["access_token"])


async def auth(url: str, scenario: str, context: dict[str, Any], folder: Path) -> dict[str, Any]:
    """How the configuration says that the server is signed in to."""
    if scenario in ("auth/enterprise-managed-authorization", "auth/wif-jwt-bearer"):
        async with httpx2.AsyncClient() as browser:
            issuer = await authority_of(browser, url)
            if "valid_jwt" in context:
                assertion, more = context["valid_jwt"], {"kind": "workload"}
            else:
                assertion = await consent_of_organisation(browser, url, issuer, context)
                more = {"kind": "enterprise", "client_secret": context["client_secret"]}
        file = trio.Path(folder) / "assertion"
        await file.write_text(assertion)
        return {**more, "client_id": context["client_id"], "issuer": issuer, "assertion_file": str(file)}
    if "private_key_pem" in context:
        key_file = trio.Path(folder) / "key.pem"
        await key_file.write_text(context["private_key_pem"])
        await key_file.chmod(0o600)
        return {
            "kind": "client_credentials",
            "client_id": context["client_id"],
            "private_key_file": str(key_file),
            "signing_algorithm": context.get("signing_algorithm", "ES256"),
        }
    kind = "client_credentials" if scenario == "auth/client-credentials-basic" else "oauth"
    if "client_id" in context:
        return {"kind": kind, "client_id": context["client_id"], "client_secret": context["client_secret"]}
    return {"kind": kind, "client_metadata_url": DOCUMENT}


PLAYS: dict[str, Play] = {
    "initialize": look,
    "tools_call": add_numbers,
    "request-metadata": look,
    "http-standard-headers": use_everything,
    "http-custom-headers": replay,
    "http-invalid-tool-headers": use_all,
    "json-schema-ref-no-deref": look,
    "json-schema-2020-12-preservation": echo_schema,
    "sse-retry": reconnect,
    "elicitation-sep1034-client-defaults": elicit,
    "sep-2322-client-request-state": rounds,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": load_skills,
    "sep-2640-client-verify-size": load_skills,
    "sep-2640-client-verify-frontmatter": load_skills,
}


async def main(url: str, scenario: str, context: dict[str, Any]) -> int:
    """Play one scenario.

    Returns:
        1 where the server did not come up, 0 otherwise.
    """
    with tempfile.TemporaryDirectory() as state:
        config: dict[str, Any] = {"url": url}
        if scenario.startswith("auth/"):
            config["auth"] = await auth(url, scenario, context, Path(state))
        async with open_manager({SERVER: config}, state_dir=Path(state)) as manager:
            await manager.started.wait()
            for _ in range(MOST_SIGN_INS):
                if manager.server(SERVER).status == "needs_auth":
                    await sign_in(manager)
            row = manager.server(SERVER)
            if not row.ready:
                print(f"{row.status}: {row.error} {row.remedy or ''}", file=sys.stderr)
                return 1
            await PLAYS.get(scenario, use_first)(manager, context)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    sys.exit(trio.run(main, sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), given))
