"""LangChain's standard tests of chat models, for its clients of OpenAI's two APIs and of Anthropic's."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

_URL = os.environ["TEST_API_BASE_URL"]


class _Standard(ChatModelIntegrationTests):
    """The tests that a model without image and audio input has to pass."""

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": "mock", "temperature": 0, "base_url": f"{_URL}/v1", "api_key": "none", "stream_usage": True}

    @property
    def supports_image_inputs(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestChat(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI


class TestResponses(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestMessages(_Standard):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {**super().chat_model_params, "base_url": _URL}

    @property
    def supports_json_mode(self) -> bool:
        return False  # its client has none
