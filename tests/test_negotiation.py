"""How a server is found to speak: in memory, on a clock that jumps, with what real servers get wrong."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.session import ClosedWhileProbing, SessionHooks
from openprogram_mcp.testing import FakeServer, Step, do
from tests._sessions import methods, raises_within, session_with

LEGACY = "2025-11-25"
MODERN = "2026-07-28"

HOW_OLD_SERVERS_TAKE_THE_PROBE: dict[str, list[Step]] = {
    "it ignores it": [],
    "unknown method": [do.fail(-32601, "Method not found")],
    "invalid params": [do.fail(-32602, "Invalid params")],
    "not initialized": [do.fail(-32000, "Server not initialized")],
    "an error without a message": [do.fail(-32603, None)],
    "garbage": [do.write("Error: unknown command\n")],
    "an empty result": [do.result({})],
    "a result of something else": [do.result({"tools": []})],
    "only old revisions": [do.result({"supportedVersions": ["2025-06-18"], "capabilities": {}})],
    "an unsupported version, old ones named": [
        do.fail(-32022, "Unsupported protocol version", {"supported": ["2025-06-18", LEGACY]})
    ],
    "an unsupported version, none named": [do.fail(-32022, "Unsupported protocol version")],
}


@pytest.mark.parametrize("steps", HOW_OLD_SERVERS_TAKE_THE_PROBE.values(), ids=HOW_OLD_SERVERS_TAKE_THE_PROBE)
async def test_proto_04_however_an_old_server_takes_the_probe_it_is_initialized_next(
    autojump_clock: MockClock, steps: list[Step]
) -> None:
    fake = FakeServer(era="legacy").on("server/discover", *steps)
    began = trio.current_time()
    async with session_with(fake) as session:
        assert (session.era, session.protocol_version) == ("legacy", LEGACY)
        assert trio.current_time() - began < 1
        await fake.wait_for("received", method="notifications/initialized")
        assert methods(fake) == ["server/discover", "initialize", "notifications/initialized"]


async def test_proto_04_a_server_that_the_probe_kills_is_to_be_started_again_without_one(
    autojump_clock: MockClock,
) -> None:
    fake = FakeServer(era="legacy").on("server/discover", do.exit(1))
    with raises_within(ClosedWhileProbing):
        async with session_with(fake):
            pass
    async with session_with(fake, known_era="legacy") as session:
        assert session.era == "legacy"
        assert methods(fake).count("server/discover") == 1


async def test_proto_04_a_modern_server_of_revisions_we_do_not_know_is_never_initialized(
    autojump_clock: MockClock,
) -> None:
    fake = FakeServer(versions=["2027-01-01"])
    with raises_within(ServerFailed, "it wants to speak protocol revision .2027-01-01., which this client") as failures:
        async with session_with(fake):
            pass
    assert failures[0].phase == "initialize"
    assert "initialize" not in methods(fake)


@pytest.mark.parametrize("era", ["both", "modern"])
async def test_a_modern_server_is_discovered_and_never_initialized(autojump_clock: MockClock, era: Any) -> None:
    fake = FakeServer(era=era, instructions="Be kind.")
    async with session_with(fake) as session:
        assert (session.era, session.protocol_version) == (MODERN, MODERN)
        assert session.server_info == {"name": "fake", "version": "1.0.0"}
        assert session.instructions == "Be kind."
        assert methods(fake) == ["server/discover"]


async def test_a_wrong_hint_of_how_long_the_answer_may_be_kept_does_not_make_a_server_old(
    autojump_clock: MockClock,
) -> None:
    for ttl in (-5, "x", None):
        fake = FakeServer(era="modern").on("server/discover", do.standard({"ttlMs": ttl, "cacheScope": 7}))
        async with session_with(fake) as session:
            assert session.era == MODERN


@pytest.mark.parametrize(("era", "spoken"), [("legacy", "legacy"), ("modern", MODERN), ("both", MODERN)])
async def test_a_server_that_boots_for_longer_than_the_probe_lasts_is_understood(
    autojump_clock: MockClock, era: Any, spoken: str
) -> None:
    fake = FakeServer(era=era).on_start(do.sleep(25))
    async with session_with(fake) as session:
        assert session.era == spoken
    assert "notifications/cancelled" not in methods(fake), "the specification forbids to cancel either"


async def test_a_question_that_is_no_longer_needed_is_not_withdrawn(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").on("server/discover", do.sleep(5), do.standard()).on("initialize").tool("t")
    async with session_with(fake) as session:
        await session.list_all("tools")
        assert methods(fake) == ["server/discover", "initialize", "tools/list"]


@pytest.mark.parametrize("options", [{"era": MODERN}, {"known_era": MODERN}])
async def test_a_server_known_to_be_modern_may_boot_for_as_long_as_it_needs(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    # The SDK gives server/discover ten seconds of its own, whatever limit the start was given.
    fake = FakeServer(era="modern").on_start(do.sleep(25))
    async with session_with(fake, **options) as session:
        assert session.era == MODERN


async def test_a_server_that_lost_the_probe_while_it_booted_and_refuses_initialize_is_probed_again(
    autojump_clock: MockClock,
) -> None:
    fake = FakeServer(era="modern").on("server/discover", do.turns([], [do.standard()]))
    async with session_with(fake) as session:
        assert session.era == MODERN
        assert methods(fake) == ["server/discover", "initialize", "server/discover"]


async def test_a_server_of_our_era_whose_answers_are_lost_is_tried_again(autojump_clock: MockClock) -> None:
    refusal = do.fail(-32022, "Unsupported protocol version", {"supported": [MODERN]})
    fake = FakeServer(era="modern").on("initialize", refusal).on("server/discover", do.result({"what": "garbled"}))
    with raises_within(ServerFailed, match="no usable answer to server/discover came") as found:
        async with session_with(fake):
            pass
    assert found[0].transient


async def test_a_server_that_refuses_both_says_what_it_refused(autojump_clock: MockClock) -> None:
    fake = FakeServer().on("server/discover", do.fail(-32601, "no")).on("initialize", do.fail(-32603, "no licence"))
    with raises_within(ServerFailed, r"it refused initialize: no licence \(code -32603\)"):
        async with session_with(fake):
            pass


# What is remembered, and what is pinned.


@pytest.mark.parametrize(("known", "first"), [("legacy", "initialize"), (MODERN, "server/discover")])
async def test_what_is_remembered_is_not_asked_for_again(autojump_clock: MockClock, known: Any, first: str) -> None:
    fake = FakeServer(era="both")
    async with session_with(fake, known_era=known) as session:
        assert session.era == known
    assert methods(fake)[0] == first
    assert {"initialize", "server/discover"} - set(methods(fake)), "one of the two was never asked"


@pytest.mark.parametrize(("era", "known", "spoken"), [("modern", "legacy", MODERN), ("legacy", MODERN, "legacy")])
async def test_a_server_that_was_replaced_since_is_understood_all_the_same(
    autojump_clock: MockClock, era: Any, known: Any, spoken: str
) -> None:
    async with session_with(FakeServer(era=era), known_era=known) as session:
        assert session.era == spoken


@pytest.mark.parametrize(
    ("era", "pinned", "said"),
    [("legacy", MODERN, "it refused server/discover"), ("modern", "legacy", "it refused initialize")],
)
async def test_a_pinned_era_is_the_only_one_that_is_tried(
    autojump_clock: MockClock, era: Any, pinned: Any, said: str
) -> None:
    fake = FakeServer(era=era)
    with raises_within(ServerFailed, said):
        async with session_with(fake, era=pinned, known_era="legacy"):
            pass
    assert len(methods(fake)) == 1


# Versions.


@pytest.mark.parametrize(
    ("refusal", "second"),
    [
        (do.fail(-32602, "Unsupported protocol version", {"supported": ["2024-11-05"]}), "2024-11-05"),
        (do.fail(-32602, f"Unsupported protocol version {LEGACY}. Supported: 2024-11-05, 2025-03-26"), "2025-03-26"),
        (do.fail(-32602, "Unsupported protocol version"), "2024-11-05"),
        (do.fail(-32022, "Unsupported protocol version", {"supported": ["2025-06-18", "2031-01-01"]}), "2025-06-18"),
    ],
    ids=["named in the data", "named in words", "named nowhere", "named beside one we do not know"],
)
async def test_proto_03a_a_refused_version_is_tried_once_more_with_one_that_the_server_names(
    autojump_clock: MockClock, refusal: Step, second: str
) -> None:
    fake = FakeServer(era="legacy", versions=[second]).on("initialize", do.turns([refusal], [do.standard()]))
    async with session_with(fake, era="legacy") as session:
        assert session.protocol_version == second
        asked = [message["params"]["protocolVersion"] for message in fake.received("initialize")]
        assert asked == [LEGACY, second]


async def test_proto_03a_a_second_refusal_is_the_last(autojump_clock: MockClock) -> None:
    fake = FakeServer().on("initialize", do.fail(-32602, "Unsupported protocol version"))
    with raises_within(ServerFailed, "it refused initialize: Unsupported protocol version"):
        async with session_with(fake, era="legacy"):
            pass
    assert methods(fake) == ["initialize", "initialize"]


@pytest.mark.parametrize("era", ["auto", MODERN])
async def test_proto_03a_a_modern_server_that_names_the_version_it_refused_is_asked_once_more(
    autojump_clock: MockClock, era: Any
) -> None:
    refusal = do.fail(-32022, "Unsupported protocol version", {"supported": [MODERN]})
    fake = FakeServer(era="modern").on("server/discover", do.turns([refusal], [do.standard()]))
    async with session_with(fake, era=era) as session:
        assert session.era == MODERN
        assert methods(fake) == ["server/discover", "server/discover"]


async def test_proto_03a_a_modern_server_that_goes_on_refusing_what_it_names_is_told_as_it_refused(
    autojump_clock: MockClock,
) -> None:
    refusal = do.fail(-32022, "Unsupported protocol version", {"supported": [MODERN]})
    fake = FakeServer(era="modern").on("server/discover", refusal)
    with raises_within(ServerFailed, "it refused server/discover: Unsupported protocol version"):
        async with session_with(fake):
            pass
    assert methods(fake)[:2] == ["server/discover", "server/discover"]


@pytest.mark.parametrize(
    "refusal",
    [do.fail(-32602, "Supported: 2031-01-01"), do.fail(-32603, "Internal error"), do.fail(-32022, "Unsupported")],
)
async def test_proto_03a_no_version_is_guessed_where_the_server_names_others_or_has_another_trouble(
    autojump_clock: MockClock,
    refusal: Step,
) -> None:
    fake = FakeServer().on("initialize", refusal)
    with raises_within(ServerFailed, "it refused initialize"):
        async with session_with(fake, era="legacy"):
            pass
    assert methods(fake) == ["initialize"]


@pytest.mark.parametrize("version", ["2099-01-01", MODERN, "", "x" * 500])
async def test_proto_03c_an_answer_in_a_version_that_nobody_asked_for_is_refused_in_plain_words(
    autojump_clock: MockClock, version: str
) -> None:
    fake = FakeServer().on("initialize", do.standard({"protocolVersion": version}))
    with raises_within(ServerFailed, "which this client does not know") as failures:
        async with session_with(fake, era="legacy"):
            pass
    assert len(failures[0].message) < 200
    assert "2025-11-25 or 2026-07-28" in failures[0].remedy


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_proto_03d_an_older_version_in_the_answer_is_the_one_that_is_spoken(
    autojump_clock: MockClock, version: str
) -> None:
    async with session_with(FakeServer(era="legacy", versions=[version]), era="legacy") as session:
        assert session.protocol_version == version
        assert session.warnings == ()


async def test_proto_03e_an_answer_without_a_version_counts_as_the_oldest_and_warns(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="legacy").on("initialize", do.standard(drop=["protocolVersion"]))
    async with session_with(fake) as session:
        assert session.protocol_version == "2024-11-05"
        assert session.warnings == ("it named no protocol version; the oldest one is used",)


async def test_an_answer_without_a_name_or_capabilities_is_taken_with_a_warning(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="legacy").on("initialize", do.standard(drop=["serverInfo", "capabilities"]))
    async with session_with(fake) as session:
        assert session.server_info == {"name": "fake", "version": ""}
        assert session.warnings == (
            "it did not say its name",
            "it did not say what it offers; it is asked for nothing",
        )
        assert not session.offers("tools")


async def test_an_answer_that_is_not_what_the_specification_says_fails_in_plain_words(
    autojump_clock: MockClock,
) -> None:
    fake = FakeServer().on("initialize", do.standard({"capabilities": {"tools": "yes"}}))
    with raises_within(ServerFailed, "its answer to initialize is not what the specification says"):
        async with session_with(fake, era="legacy"):
            pass


# What else goes on meanwhile.


async def test_s2c_03_what_a_server_asks_and_tells_before_it_is_initialized_is_answered_and_heard(
    autojump_clock: MockClock,
) -> None:
    heard: list[Any] = []

    async def on_log(*said: Any) -> None:
        heard.append(said)

    fake = FakeServer(era="legacy").on(
        "initialize",
        do.log("before", logger="boot"),
        do.standard(),
        do.request("roots/list", id=0),
        do.note("$answer"),
        do.request("ping", id="p"),
        do.note("$answer"),
    )
    async with session_with(fake, era="legacy", hooks=SessionHooks(on_log=on_log)):
        notes = await fake.wait_for("note", count=2)
    assert heard == [("info", "boot", "before")]
    assert notes[0].facts["value"]["code"] == -32601
    assert notes[1].facts["value"] == {}
