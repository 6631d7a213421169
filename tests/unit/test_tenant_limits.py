"""Limits of a request: those of its key and those of the key's tenant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ModelNotFound, RequestError
from app.openai.schemas import ChatRequest
from app.tenants.limit_table import UNLIMITED, TenantLimits
from app.tenants.limits import answer_tokens, begun_before, check_model, check_tokens, may_ask, together, usual_priority

NUMBERS = st.none() | st.integers(1, 20)
PRIORITIES = st.none() | st.integers(-20, 0)
MODELS = st.none() | st.lists(st.sampled_from("abcd"), unique=True)
LIMITS = st.builds(
    TenantLimits, models=MODELS, min_priority=PRIORITIES, default_priority=PRIORITIES, default_max_tokens=NUMBERS,
    max_tokens=NUMBERS, file_quota=NUMBERS, keep_bytes=NUMBERS, batch_lines=NUMBERS,
    expires=st.none() | st.floats(0, 100),
)  # fmt: skip


def chat(**asked: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "a", "messages": [{"role": "user", "content": "x"}], **asked})


@given(LIMITS, LIMITS, st.sampled_from("abcde"))
def test_a_model_has_to_be_allowed_by_both(tenant: TenantLimits, key: TenantLimits, model: str) -> None:
    assert may_ask(together(tenant, key), model) == (may_ask(tenant, model) and may_ask(key, model))


@given(LIMITS, LIMITS, st.integers(1, 25))
def test_an_answer_that_either_refuses_is_refused(tenant: TenantLimits, key: TenantLimits, tokens: int) -> None:
    def refuses(limits: TenantLimits) -> bool:
        try:
            check_tokens(limits, chat(max_completion_tokens=tokens))
        except RequestError:
            return True
        return False

    assert refuses(together(tenant, key)) == (refuses(tenant) or refuses(key))


@given(LIMITS, LIMITS)
def test_a_bound_is_the_smaller_of_both_and_the_latest_urgency(tenant: TenantLimits, key: TenantLimits) -> None:
    both = together(tenant, key)
    for name in ("max_tokens", "file_quota", "keep_bytes", "batch_lines", "expires"):
        bounds = [v for v in (getattr(tenant, name), getattr(key, name)) if v is not None]
        assert getattr(both, name) == min(bounds, default=None)
    bounds = [v for v in (tenant.min_priority, key.min_priority) if v is not None]
    assert both.min_priority == max(bounds, default=None)


@given(LIMITS, LIMITS, NUMBERS)
def test_what_a_request_does_not_say_is_never_above_what_it_may_say(
    tenant: TenantLimits, key: TenantLimits, usual: int | None
) -> None:
    both = together(tenant, key)
    tokens = answer_tokens(both, usual)
    if tokens is not None:
        check_tokens(both, chat(max_tokens=tokens))
    assert tokens is not None or both.max_tokens is None
    priority = usual_priority(both)
    assert priority is None or both.min_priority is None or priority >= both.min_priority
    assert answer_tokens(begun_before(both), usual) == tokens


def test_without_limits_nothing_is_made_for_a_request() -> None:
    """The request path looks by identity whether there is anything to do."""
    assert together(TenantLimits(), TenantLimits()) is UNLIMITED
    assert together(TenantLimits(requests_per_min=3), TenantLimits(tokens_per_min=5)) is UNLIMITED  # the ledger's


def test_a_key_may_have_no_model_at_all() -> None:
    with pytest.raises(ModelNotFound, match="'a' does not exist or you do not have access"):
        check_model(together(TenantLimits(models=["b"]), TenantLimits(models=["a"])), "a")
