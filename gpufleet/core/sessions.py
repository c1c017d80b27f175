"""Sessions in the database under the hash of their key: whoever reads the table, or a backup of it, can sign in as nobody."""

import hashlib
from typing import Any

from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

KEY_LENGTH = 40  # of the table's column


def hashed(session_key: str | None) -> str:
    """What the table holds of a key that a browser holds. Keys are random, so no salt is needed."""
    return hashlib.sha256((session_key or "").encode()).hexdigest()[:KEY_LENGTH]


class SessionStore(DatabaseStore):
    """Django's own, but for the key under which a row stands."""

    def _get_session_from_db(self) -> Any:
        row = self.model.objects.filter(session_key=hashed(self.session_key), expire_date__gt=timezone.now()).first()
        if row is None:
            self._session_key = None
        return row

    async def _aget_session_from_db(self) -> Any:
        row = await self.model.objects.filter(session_key=hashed(self.session_key), expire_date__gt=timezone.now()).afirst()
        if row is None:
            self._session_key = None
        return row

    def exists(self, session_key: str) -> bool:
        return super().exists(hashed(session_key))

    async def aexists(self, session_key: str) -> bool:
        return await super().aexists(hashed(session_key))

    def create_model_instance(self, data: Any) -> Any:
        row = super().create_model_instance(data)
        row.session_key = hashed(row.session_key)
        return row

    async def acreate_model_instance(self, data: Any) -> Any:
        row = await super().acreate_model_instance(data)
        row.session_key = hashed(row.session_key)
        return row

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            super().delete(hashed(key))

    async def adelete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            await super().adelete(hashed(key))
