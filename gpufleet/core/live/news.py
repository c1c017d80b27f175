"""Keys of what changed in one transaction, gathered on the way and published once at its end."""

from gpufleet.core.live.feed import feed_tell


class News:
    """Every topic's changed keys, each once and in order. A service that is given one adds to it; whoever made it publishes."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[int, None]] = {}

    def add(self, topic: str, *keys: int) -> None:
        self._keys.setdefault(topic, {}).update(dict.fromkeys(keys))

    def publish(self) -> None:
        """In the transaction that made the changes, after the last of them."""
        if self._keys:
            feed_tell(changes={topic: [{"id": key} for key in keys] for topic, keys in self._keys.items()})
        self._keys.clear()
