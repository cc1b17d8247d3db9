"""The names a model sees: short enough, unique, and the same whatever order servers come in."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.adapter import MAX_NAME, NameStyle, assign_names, clash_warnings, namespace_tool_name

ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")

awkward = st.one_of(
    st.text(max_size=90),
    st.text(alphabet="a_-./ x", max_size=6),
    st.text(alphabet="ab", min_size=55, max_size=75),
)
pairs = st.tuples(awkward, awkward)
styles: st.SearchStrategy[NameStyle] = st.sampled_from(["plain", "mcp"])


def test_a_name_is_server_and_tool() -> None:
    assert namespace_tool_name("time", "get_current_time") == "time__get_current_time"
    assert namespace_tool_name("time", "get_current_time", style="mcp") == "mcp__time__get_current_time"


def test_what_model_apis_refuse_in_a_name_becomes_an_underscore() -> None:
    assert namespace_tool_name("my server.é", "a/b:c d-e") == "my_server____a_b_c_d-e"


def test_name_01_a_long_name_is_cut_to_64_keeps_the_tools_end_and_has_a_hash() -> None:
    server, tool = "enterprise-database-management", "synchronize-all-customer-data-across-multiple-systems"
    # Written out: a name that changes with a release loses every permission rule and every prompt cache.
    name = namespace_tool_name(server, tool)
    assert name == "enterprise-datab_08211ac6__customer-data-across-multiple-systems"
    assert len(name) == MAX_NAME


@pytest.mark.parametrize(("length", "cut"), [(63, False), (64, False), (65, True)])
def test_name_01_a_name_is_cut_only_when_it_is_over_64(length: int, cut: bool) -> None:
    tool = "t" * (length - len("s__"))
    assert (namespace_tool_name("s", tool) != f"s__{tool}") is cut


def test_name_01_tools_that_differ_only_after_the_cut_have_different_names() -> None:
    names = assign_names([("s", "a" * 70 + "1"), ("s", "a" * 70 + "2"), ("s", "1" + "a" * 70), ("s", "2" + "a" * 70)])
    assert len(set(names.values())) == 4
    assert all(len(name) <= MAX_NAME for name in names.values())


def test_name_03_every_pair_of_a_collision_gets_a_hash_and_nobody_keeps_the_plain_name() -> None:
    clashing = [("s", "a.b"), ("s", "a_b"), ("s", "a/b"), ("x-y", "run"), ("x.y", "run"), ("x_y", "run")]
    names = assign_names(clashing)
    assert len(set(names.values())) == len(clashing)
    assert names["x-y", "run"] == "x-y__run", "it collides with nobody"
    for pair in clashing:
        if pair != ("x-y", "run"):
            assert names[pair] != namespace_tool_name(*pair)
            assert names[pair].endswith(namespace_tool_name("", pair[1])[2:]), "the tool's end stays"


def test_name_03_a_name_depends_on_the_set_and_not_on_the_order() -> None:
    clashing = [("s", "a.b"), ("s", "a_b"), ("s", "a/b"), ("x.y", "run"), ("x_y", "run"), ("z", "z" * 80)]
    expected = assign_names(clashing)
    for seed in range(20):
        random.Random(seed).shuffle(clashing)  # noqa: S311 - an order, not a secret
        assert assign_names(clashing) == expected


def test_name_03_a_hashed_name_that_is_anothers_plain_name_ends_unique() -> None:
    first, second = ("x.y", "run"), ("x_y", "run")
    hashed = assign_names([first, second])[first]
    server, tool = hashed.split("__")
    trap = (server, tool)
    names = assign_names([first, second, trap])
    assert len(set(names.values())) == 3
    assert names[trap] != hashed
    assert names == assign_names([trap, second, first])


def test_name_03_a_hostile_chain_of_traps_costs_little_time() -> None:
    chain = [("x.y", "run"), ("x_y", "run")]
    for _ in range(300):
        server, tool = assign_names(chain)[chain[-1]].split("__")
        chain.append((server, tool))
    started = time.perf_counter()
    names = assign_names(chain)
    assert len(set(names.values())) == len(chain)
    assert time.perf_counter() - started < 2


def test_name_03_a_clash_is_said_and_a_cut_is_none() -> None:
    names = assign_names([("s", "a.b"), ("s", "a_b"), ("s", "c"), ("s", "d" * 90)])
    assert clash_warnings(names) == {
        ("s", "a.b"): f'tool "a.b" is offered as {names["s", "a.b"]}, since another has the name s__a_b',
        ("s", "a_b"): f'tool "a_b" is offered as {names["s", "a_b"]}, since another has the name s__a_b',
    }
    assert clash_warnings(assign_names([("s", "c")], style="mcp"), style="mcp") == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a_", "_x"), ("a", "__x")),
        (("a__b", "c"), ("a", "b__c")),
        (("my_db", "q"), ("my db", "q")),
        (("日本", "run"), ("中国", "run")),
    ],
)
def test_name_05_pairs_that_read_the_same_have_different_names(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert namespace_tool_name(*one) == namespace_tool_name(*other)
    names = assign_names([one, other])
    assert names[one] != names[other]


def test_name_05_servers_with_underscores_stay_apart() -> None:
    servers = ["db", "my_db", "my__db", "my__db_", "_db", "db__"]
    names = assign_names([(server, "run") for server in servers])
    assert len(set(names.values())) == len(servers)


def test_names_stand_in_the_order_of_the_pairs_and_a_repeated_pair_counts_once() -> None:
    given_pairs = [("b", "x"), ("a", "y"), ("b", "x")]
    assert assign_names(given_pairs) == {("b", "x"): "b__x", ("a", "y"): "a__y"}
    assert list(assign_names(given_pairs)) == [("b", "x"), ("a", "y")]


@given(awkward, awkward, styles)
def test_any_name_is_one_that_model_apis_accept(server: str, tool: str, style: NameStyle) -> None:
    name = namespace_tool_name(server, tool, style=style)
    assert ACCEPTED.fullmatch(name)
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    assert name.endswith(kept[-20:])


@given(st.lists(pairs, max_size=12), styles, st.randoms(use_true_random=False))
def test_any_set_of_names_is_unique_and_independent_of_its_order(
    given_pairs: list[tuple[str, str]], style: NameStyle, order: random.Random
) -> None:
    names = assign_names(given_pairs, style=style)
    assert set(names) == set(given_pairs)
    assert len(set(names.values())) == len(names)
    assert all(ACCEPTED.fullmatch(name) for name in names.values())
    shuffled = list(names)
    order.shuffle(shuffled)
    assert assign_names(shuffled, style=style) == names


@given(st.lists(pairs, unique=True, max_size=8), styles)
def test_a_pair_that_collides_with_nobody_has_its_pure_name(
    given_pairs: list[tuple[str, str]], style: NameStyle
) -> None:
    names = assign_names(given_pairs, style=style)
    pure = [namespace_tool_name(*pair, style=style) for pair in given_pairs]
    for pair, name in zip(given_pairs, pure, strict=True):
        if pure.count(name) == 1 and list(names.values()).count(name) == 1:
            assert names[pair] == name
