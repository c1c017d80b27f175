"""What goes wrong between gpufleet and Kubernetes."""

from scheduler.backends.base import BackendError, BackendSilent


class KubernetesSilent(BackendSilent):
    """The API server did not answer in time."""


class KubernetesDenied(BackendError):
    """The API server does not know who asks, or does not let them: no credentials, or no role."""

    @property
    def is_of_admission(self) -> bool:
        """Whether the console may do this, and a rule of the cluster refuses what it sent: a quota, a policy, a webhook."""
        return " is forbidden: " in str(self) and not any(word in str(self) for word in (" cannot ", "User "))

    @property
    def is_of_quota(self) -> bool:
        """Whether that passes by itself, as others leave."""
        return "exceeded quota" in str(self)


class KubernetesFailed(BackendError):
    """The API server said no. `code` is the HTTP status, `reason` a word of Kubernetes such as `AlreadyExists`."""

    def __init__(self, words: str, code: int, reason: str = "") -> None:
        super().__init__(words)
        self.code, self.reason = code, reason

    @property
    def is_missing(self) -> bool:
        return self.code == 404

    @property
    def is_taken(self) -> bool:
        """Something of that name is there already."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def is_expired(self) -> bool:
        """The version from which a watch or a page was to go on is too old."""
        return self.code == 410 or self.reason in ("Expired", "Gone")
