"""Claims of a token, and those of them that count."""

from typing import Any

import pytest

from app.errors import Unauthorized
from app.tenants.tokens import Claims, header_of, key_for, looks_signed, signing_keys, value_of, verified
from tests.issuer import AUDIENCE, Issuer, issuing
from tests.present import present


@pytest.fixture(scope="module")
def issuer() -> Any:
    with issuing() as one:
        yield one


def read(issuer: Issuer, claims: Claims, **given: Any) -> Any:
    token = issuer.token(**given)
    key = present(key_for(signing_keys(issuer.shown("/keys")), *header_of(token)))
    return verified(token, key, claims)


def test_the_owner_is_of_issuer_subject_and_tenant(issuer: Issuer) -> None:
    """Each owner is erased with what was made in its tenant: a person who moves to another one takes nothing along."""
    claims = Claims(issuer.url, AUDIENCE)
    changes: tuple[dict[str, Any], ...] = ({}, {"jti": "2"}, {"tenant": "red"}, {"sub": "bob"})
    one, again, moved_identity, other = (read(issuer, claims, **each) for each in changes)
    assert one.owner == again.owner
    assert len({one.owner, moved_identity.owner, other.owner}) == 3
    assert one.owner.startswith("oidc_")
    assert len(one.owner) == len("oidc_") + 24
    assert (one.tenant, moved_identity.tenant) == ("blue", "red")


@pytest.mark.parametrize(("given", "models", "is_admin"), [
    ({}, [], False),
    ({"m": "a b"}, ["a", "b"], False),
    ({"m": ["a", 3]}, ["a"], False),
    ({"m": []}, [], False),
    ({"m": 7}, [], False),
    ({"m": {"x": 1}, "realm": {"roles": ["boss"]}}, [], True),
    ({"realm": {"roles": "boss"}}, [], True),
    ({"realm": {"roles": "boss other"}}, [], False),
    ({"realm": {"roles": "the boss"}}, [], False),
    ({"realm": {"roles": ["the boss", "bosses"]}}, [], False),
    ({"realm.roles": ["boss"]}, [], True),
    ({"realm": "boss"}, [], False),
])  # fmt: skip
def test_models_and_admins_are_read_from_lists_and_texts(
    issuer: Issuer, given: dict[str, Any], models: list[str], is_admin: bool
) -> None:
    """A token without the claims has no model, and is no admin's."""
    identity = read(issuer, Claims(issuer.url, AUDIENCE, models="m", admin=("realm.roles", "boss")), **given)
    assert (identity.models, identity.is_admin) == (models, is_admin)


@pytest.mark.parametrize("claim", ["scope", "realm.scp"])
def test_a_text_of_scopes_has_several(issuer: Issuer, claim: str) -> None:
    """OAuth writes scopes so; without a claim for models, tokens name none."""
    claims = Claims(issuer.url, AUDIENCE, admin=(claim, "boss"))
    assert read(issuer, claims, scope="openid boss", realm={"scp": "a boss"}).is_admin
    assert not read(issuer, claims, scope="openid bosses", realm={"scp": "bosses"}).is_admin
    assert read(issuer, claims).models is None, "no claim is asked for"


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


@pytest.mark.parametrize("claim", [{"sub": "\ud800"}, {"tenant": "\ud800"}, {"exp": 10**400}])
def test_a_token_with_what_nobody_can_be_named_by_is_refused(issuer: Issuer, claim: dict[str, Any]) -> None:
    """An issuer may sign it all the same."""
    with pytest.raises(Unauthorized):
        read(issuer, Claims(issuer.url, AUDIENCE), **claim)


def test_a_token_of_any_length_is_not_looked_at(issuer: Issuer) -> None:
    """One of 45 KB, of nobody, took 10 ms."""
    claims = Claims(issuer.url, AUDIENCE)
    assert read(issuer, claims, groups=["g" * 30] * 300).tenant == "blue", "an issuer may name many groups"
    with pytest.raises(Unauthorized, match="longer than 16384 characters"):
        read(issuer, claims, groups=["g" * 30] * 400)
