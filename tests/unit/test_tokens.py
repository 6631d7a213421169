"""Which claims of a token count."""

from typing import Any

import pytest

from app.errors import Unauthorized
from app.tenants.tokens import Claims, header_of, key_for, looks_signed, signing_keys, value_of, verified
from tests.issuer import AUDIENCE, Issuer, issuing


@pytest.fixture(scope="module")
def issuer() -> Any:
    with issuing() as one:
        yield one


def read(issuer: Issuer, claims: Claims, **given: Any) -> Any:
    token = issuer.token(**given)
    key = key_for(signing_keys(issuer.shown("/keys")), *header_of(token))
    assert key is not None
    return verified(token, key, claims)


def test_the_owner_is_of_issuer_and_subject(issuer: Issuer) -> None:
    """Of each tenant, and of no other issuer."""
    claims = Claims(issuer.url, AUDIENCE)
    one, same, other = (read(issuer, claims, **given) for given in ({}, {"tenant": "red"}, {"sub": "bob"}))
    assert one.owner == same.owner != other.owner
    assert one.owner.startswith("oidc_")
    assert len(one.owner) == len("oidc_") + 24
    assert (one.tenant, same.tenant) == ("blue", "red")


@pytest.mark.parametrize(("given", "models", "is_admin"), [
    ({}, None, False),
    ({"m": "a b"}, ["a", "b"], False),
    ({"m": ["a", 3]}, ["a"], False),
    ({"m": []}, [], False),
    ({"m": {"x": 1}, "realm": {"roles": ["boss"]}}, None, True),
    ({"realm": {"roles": "boss other"}}, None, True),
    ({"realm": {"roles": ["bosses"]}}, None, False),
    ({"realm.roles": ["boss"]}, None, True),
    ({"realm": "boss"}, None, False),
])  # fmt: skip
def test_models_and_admins_are_read_from_lists_and_texts(
    issuer: Issuer, given: dict[str, Any], models: list[str] | None, is_admin: bool
) -> None:
    found = read(issuer, Claims(issuer.url, AUDIENCE, models="m", admin=("realm.roles", "boss")), **given)
    assert (found.models, found.is_admin) == (models, is_admin)


@pytest.mark.parametrize("tenant", [5, ["blue"], {"a": 1}, True])
def test_a_tenant_that_is_no_text_is_none(issuer: Issuer, tenant: Any) -> None:
    assert read(issuer, Claims(issuer.url, AUDIENCE), tenant=tenant).tenant is None


def test_a_name_with_dots_means_the_claim_of_that_name_first() -> None:
    assert value_of({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert value_of({"a": {"b": 2}}, "a.b") == 2
    assert value_of({"a": "x"}, "a.b") is None


def test_a_token_that_names_no_key_is_of_the_only_one(issuer: Issuer) -> None:
    keys = issuer.shown("/keys")["keys"]
    assert key_for(keys, None, "RS256") is not None
    assert key_for(keys, "other", "RS256") is None
    assert key_for([*keys, keys[0] | {"kid": "other"}], "one", "RS256") is not None
    with pytest.raises(Unauthorized, match="several"):
        key_for([*keys, *keys], None, "RS256")
    with pytest.raises(Unauthorized, match="not for ES256"):
        key_for(keys, "one", "ES256")


def test_a_symmetric_key_among_the_issuers_signs_nothing(issuer: Issuer) -> None:
    secret = {"kty": "oct", "kid": "s", "k": "c2VjcmV0"}
    with pytest.raises(Unauthorized):
        key_for([secret], "s", "RS256")


def test_our_own_keys_never_look_like_tokens() -> None:
    assert looks_signed(b"eyJhbGciOiJSUzI1NiJ9.e30.x")
    assert not any(map(looks_signed, (b"", b"xyl-abc", b"sk-a.b.c", b"eyJ.x")))
