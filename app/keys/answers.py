"""Keys of kept answers and conversations."""

from app.ids import ApiId, ConversationId, KeyId, RequestId
from app.keys.names import KeyNames


class AnswerKeys(KeyNames):
    def kept(self, request: RequestId) -> str:
        return f"{self._kept}kept:{request}"

    def log(self, request: RequestId) -> str:
        return f"{self._kept}log:{request}"

    def conversation(self, conversation: ConversationId) -> tuple[str, str]:
        """The keys of the conversation, and of its items."""
        return f"{self._kept}conversation:{conversation}", f"{self._kept}conversation-items:{conversation}"

    def kept_of(self, api: ApiId) -> str:
        return f"{self._kept}kept-of:{api}"

    def answer_owners(self) -> str:
        return f"{self._kept}answer-owners"

    def untold(self) -> str:
        return f"{self._kept}untold"

    def chats_of(self, key: KeyId) -> str:
        return f"{self._kept}chats-of:{key}"

    def videos_of(self, key: KeyId) -> str:
        return f"{self._kept}videos-of:{key}"

    def kept_account(self) -> tuple[str, str]:
        """The last keys of the scripts that keep answers."""
        return f"{self._kept}kept-bytes", f"{self._kept}kept-expiring"

    def joined(self, digest: str) -> str:
        return f"{self._kept}joined:{digest}"
