"""Keys of tenants: their API keys, adapters, limits and usage."""

from app.ids import RequestId
from app.keys.names import KeyNames


class TenantKeys(KeyNames):
    def api_keys(self) -> str:
        return f"{self._fleet}keys:api"

    def loras(self) -> tuple[str, str]:
        """The adapters, and their version."""
        return f"{self._fleet}loras", f"{self._fleet}loras-version"

    def tenants(self) -> str:
        return f"{self._fleet}tenants"

    def key_owners(self) -> str:
        return f"{self._fleet}keys:owners"

    def erasures(self) -> tuple[str, str]:
        """The erasures, and who carries them out."""
        return f"{self._fleet}erasures", f"{self._fleet}erasing"

    def erased_salts(self) -> str:
        return f"{self._fleet}salts:erased"

    def prices(self) -> str:
        return f"{self._fleet}prices"

    def tenants_version(self) -> str:
        return f"{self._fleet}tenants-version"

    def audit(self) -> str:
        return f"{self._fleet}audit"

    def aliases(self) -> str:
        return f"{self._fleet}aliases"

    def spent(self, account: str) -> str:
        return f"{self._fleet}spent:{account}"

    def budget(self, account: str) -> str:
        return f"{self._fleet}budget:{account}"

    def reserved(self, account: str, unit: str) -> str:
        """The reserved part of a budget: a change of the unit leaves what running requests reserve in the old one."""
        return f"{self._fleet}budget:{account}:reserved{'' if unit == 'tokens' else f':{unit}'}"

    def budgets(self) -> str:
        return f"{self._fleet}budgets"

    def budget_notices(self) -> str:
        return f"{self._fleet}budget-notices"

    def budget_leader(self) -> str:
        return f"{self._fleet}budget-leader"

    def running(self, account: str) -> str:
        return f"{self._fleet}running:{account}"

    def charged(self, request: RequestId) -> str:
        return f"{self._fleet}charged:{request}"

    def service(self, model: str) -> str:
        return f"{self._fleet}service:{model}"

    def usage(self) -> str:
        return f"{self._fleet}usage"

    def usage_aside(self) -> str:
        return f"{self._fleet}usage-aside"

    def usage_leader(self) -> str:
        return f"{self._fleet}usage-leader"
