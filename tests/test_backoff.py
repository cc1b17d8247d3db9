from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.client._backoff import Backoff
from openprogram_mcp.config import Reconnect


def _longest(low: float, high: float) -> float:
    del low
    return high


def test_the_wait_doubles_up_to_its_limit() -> None:
    backoff = Backoff(Reconnect(initial_seconds=1, max_seconds=10), _longest)
    assert [backoff.next_wait(crashed=False) for _ in range(6)] == [1, 2, 4, 8, 10, 10]


@given(st.integers(0, 300), st.floats(0.01, 100), st.floats(1, 1000))
def test_a_wait_is_never_longer_than_its_limit_nor_shorter_than_half_of_the_first(
    tries: int, initial: float, factor: float
) -> None:
    backoff = Backoff(Reconnect(initial_seconds=initial, max_seconds=initial * factor))
    for _ in range(tries):
        wait = backoff.next_wait(crashed=False)
        assert wait is not None
        assert initial / 2 <= wait <= initial * factor


def test_recon_08_the_count_begins_again_after_a_stable_spell_and_not_with_the_connection() -> None:
    backoff = Backoff(Reconnect(initial_seconds=1, max_seconds=60, stable_seconds=30), _longest)
    assert [backoff.next_wait(crashed=True) for _ in range(3)] == [1, 2, 4]
    backoff.was_up(29)
    assert backoff.next_wait(crashed=True) == 8
    backoff.was_up(30)
    assert backoff.next_wait(crashed=True) == 1


def test_recon_08_a_crash_loop_ends_but_an_outage_does_not() -> None:
    crashing = Backoff(Reconnect(), _longest)
    waits = [crashing.next_wait(crashed=True) for _ in range(8)]
    assert waits[-1] is None
    assert None not in waits[:-1]
    away = Backoff(Reconnect(), _longest)
    assert None not in [away.next_wait(crashed=False) for _ in range(1000)]


def test_a_try_that_was_no_crash_breaks_the_chain_of_crashes() -> None:
    backoff = Backoff(Reconnect(), _longest)
    for _ in range(5):
        assert backoff.next_wait(crashed=True) is not None
    assert backoff.next_wait(crashed=False) is not None
    for _ in range(7):
        assert backoff.next_wait(crashed=True) is not None
    assert backoff.next_wait(crashed=True) is None


def test_after_the_configured_number_of_tries_there_are_no_more() -> None:
    backoff = Backoff(Reconnect(max_attempts=2), _longest)
    assert backoff.next_wait(crashed=False) is not None
    assert backoff.next_wait(crashed=False) is not None
    assert backoff.next_wait(crashed=False) is None
    backoff.begin_again()
    assert backoff.next_wait(crashed=False) is not None


def test_where_reconnecting_is_switched_off_there_is_no_try() -> None:
    assert Backoff(False).next_wait(crashed=False) is None
