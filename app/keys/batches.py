"""Keys of files and batches."""

from app.ids import BatchId, FileId, KeyId
from app.keys.names import KeyNames


class BatchKeys(KeyNames):
    def file(self, file: FileId) -> str:
        return f"{self._fleet}file:{file}"

    def files_of(self, key: KeyId) -> str:
        return f"{self._fleet}files-of:{key}"

    def file_bytes(self, key: KeyId) -> str:
        return f"{self._fleet}file-bytes:{key}"

    def file_bytes_in_all(self) -> str:
        return self.file_bytes(KeyId("*"))  # no key's id

    def files_expiring(self) -> str:
        return f"{self._fleet}files-expiring"

    def batch(self, batch: BatchId) -> str:
        return f"{self._fleet}batch:{batch}"

    def batches_of(self, key: KeyId) -> str:
        return f"{self._fleet}batches-of:{key}"

    def batches(self) -> str:
        return f"{self._fleet}batches"

    def todo(self, batch: BatchId) -> str:
        return f"{self._fleet}todo:{batch}"

    def taken(self, batch: BatchId) -> str:
        return f"{self._fleet}taken:{batch}"

    def done(self, batch: BatchId, part: int) -> str:
        return f"{self._fleet}done:{batch}:{part}"

    def batch_leader(self) -> str:
        return f"{self._fleet}batch-leader"

    def batch_workers(self) -> str:
        return f"{self._fleet}batch-workers"

    def batch_ports(self) -> str:
        return f"{self._fleet}batch-ports"

    def batch_counts(self) -> str:
        return f"{self._fleet}batch-counts"

    def batch_totals(self) -> str:
        return f"{self._fleet}batch-totals"
