"""An issuer's keys: whatever it says instead of them, those that were known hold, and better ones are fetched later."""

import asyncio
from typing import Any

import pytest

from app.api.oidc.signing_keys import SigningKeys
from app.running.loops import failures
from tests.background import beside, until
from tests.dripping import dripping
from tests.issuer import Issuer, issuing

ABOUT, KEYS = "/.well-known/openid-configuration", "/keys"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (ABOUT, {"jwks_uri": {"href": "/keys"}}), (ABOUT, {"jwks_uri": 1}), (ABOUT, {"jwks_uri": None}),
        (ABOUT, {"jwks_uri": "http://[::1"}), (ABOUT, {"jwks_uri": ""}), (ABOUT, {"jwks_uri": "x" * 100_000}),
        (ABOUT, {"issuer": {}}), (KEYS, []), (KEYS, {"keys": 7}), (KEYS, {"keys": None}), (KEYS, "keys"), (KEYS, None),
    ],
)  # fmt: skip
async def test_an_issuer_that_talks_nonsense_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, path: str, said: Any
) -> None:
    """A request whose token has an unknown key asks in between, and must not fail of it either."""
    with issuing() as issuer:
        talks = issuer.shown
        keys = SigningKeys(issuer.url, lambda: None, least_s=0.02)

        def nonsense(asked: str) -> Any:
            usual = talks(asked)
            if asked != path:
                return usual
            return {**usual, **said} if path == ABOUT else said

        async with beside(keys.run()) as running:
            await until(lambda: keys.loaded, 20)
            keys_before = keys.keys
            monkeypatch.setattr(issuer, "shown", nonsense)
            for _ in range(3):
                await asyncio.sleep(0.03)
                await keys.refresh()
            assert keys.keys == keys_before
            monkeypatch.setattr(issuer, "shown", talks)
            issuer.add("two", "ES256")
            await asyncio.sleep(0.03)
            await keys.refresh()
            assert len(keys.keys) == 2
            assert not running.done()


async def test_the_keys_are_fetched_again_after_nonsense_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failures meanwhile are counted, as those of every loop."""
    failures_before = failures()
    with issuing() as issuer:
        talks, paths = Issuer.shown, list[str]()

        def nonsense(_: Issuer, path: str) -> Any:
            paths.append(path)
            return {"issuer": issuer.url, "jwks_uri": {}}

        monkeypatch.setattr(Issuer, "shown", nonsense)
        keys = SigningKeys(issuer.url, lambda: None, least_s=0.02)
        async with beside(keys.run()), asyncio.timeout(20):
            while len(paths) < 2:
                await asyncio.sleep(0.01)
            assert not keys.loaded
            monkeypatch.setattr(Issuer, "shown", talks)
            while not keys.loaded:
                await asyncio.sleep(0.01)
    assert failures() > failures_before


async def test_an_issuer_whose_answer_never_ends_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is no silence; and whoever names a new key waits until it was tried."""
    monkeypatch.setattr("app.api.oidc.signing_keys._TIMEOUT_S", 0.3)
    async with dripping(b"HTTP/1.1 200 OK\r\n\r\n", b" ") as (url, closings):
        keys = SigningKeys(url, lambda: None, least_s=0.02)
        await keys.refresh()
        assert not keys.loaded
        await closings.get()
