"""Django's settings for both profiles. What an operator may choose comes from `gpufleet.environment`; the rest is decided here."""

import contextlib
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from psycopg.conninfo import conninfo_to_dict

from gpufleet import environment
from gpufleet.core.logs import logging_config

ENV = environment.read()
BASE_DIR = Path(__file__).resolve().parent.parent
# In a clone, templates and static files lie beside the packages; an installed console brings its own (setup.py).
IN_CLONE = (BASE_DIR / "manage.py").exists()
SITE_DIR = BASE_DIR if IN_CLONE else BASE_DIR / "gpufleet" / "site"
PROFILE: str = ENV["PROFILE"]
PRODUCTION = PROFILE == "production"
DATA_DIR: Path = ENV["DATA_DIR"] if ENV["DATA_DIR"].is_absolute() else (BASE_DIR if IN_CLONE else Path.cwd()) / ENV["DATA_DIR"]
DEBUG = False


SHORTEST_KEY = 50


def _kept_secret() -> str:
    """The embedded profile makes its own key once and keeps it beside its database, so sessions outlive a restart."""
    path = DATA_DIR / "secret_key"
    try:
        if not DATA_DIR.exists():
            DATA_DIR.mkdir(parents=True, mode=0o700)
        if not path.exists():
            # Whole or not at all: of two programs that start at once, both use the key of the first.
            with tempfile.NamedTemporaryFile("w", dir=DATA_DIR, prefix="secret_key.") as fresh:
                fresh.write(secrets.token_urlsafe(64))
                fresh.flush()
                os.fsync(fresh.fileno())
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(fresh.name)
            folder = os.open(DATA_DIR, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)  # the name as well as the content outlives a power cut
            finally:
                os.close(folder)
        key = path.read_text().strip()
        if len(key) < SHORTEST_KEY:
            told = f"{path} does not hold a key: restore it from a backup, or delete it for a new one (which signs everybody out)."
            raise environment.ConfigurationError([f"GPUFLEET_DATA_DIR: {told}"])
        return key
    except OSError as error:
        raise environment.ConfigurationError([f"GPUFLEET_DATA_DIR: {DATA_DIR} can't be used: {error.strerror} ({error.filename})"]) from None


SECRET_KEY = ENV["SECRET_KEY"] or _kept_secret()
ALLOWED_HOSTS = list(ENV["ALLOWED_HOSTS"])
CSRF_TRUSTED_ORIGINS = [ENV["PUBLIC_URL"].rstrip("/")] if ENV["PUBLIC_URL"] else []
ROOT_URLCONF = "gpufleet.urls"
ASGI_APPLICATION = "gpufleet.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "core.User"
SITE_ID = None

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "csp",
    "django_htmx",
    "channels",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "gpufleet.core",
    "quotas",
    "scheduler",
    "dashboards",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "gpufleet.core.middleware.PackedPagesMiddleware",
    "csp.middleware.CSPMiddleware",
    "gpufleet.core.middleware.RequestIdMiddleware",
    "gpufleet.problems.head_middleware",
    "gpufleet.problems.problem_middleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "gpufleet.errors.UnstorableMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [SITE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "gpufleet.navigation.shell",
            ]
        },
    }
]


LONGEST_STATEMENT_S, LONGEST_LOCK_S = 60, 20


def _postgresql(url: str) -> dict[str, Any]:
    parts = conninfo_to_dict(url)
    known = {"NAME": parts.pop("dbname", ""), "USER": parts.pop("user", ""), "PASSWORD": parts.pop("password", "")}
    known |= {"HOST": parts.pop("host", ""), "PORT": parts.pop("port", "")}
    # Under ASGI a thread serves many requests, so connections live in psycopg's pool and not in Django's per-thread cache.
    return {
        "ENGINE": "django.db.backends.postgresql",
        **known,
        "CONN_MAX_AGE": 0,
        # What is asked again and again stays prepared (gpufleet.core.prepared); the ORM's own statements are never.
        # A database that is away is told within seconds (503), and one that hangs is not waited for without end.
        "OPTIONS": {
            "connect_timeout": 2,
            "options": f"-c statement_timeout={LONGEST_STATEMENT_S}s -c lock_timeout={LONGEST_LOCK_S}s",
            **parts,
            "prepare_threshold": 2,
            "pool": {"min_size": 2, "max_size": 16, "timeout": 5, "reconnect_timeout": 30},
        },
    }


def _sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "gpufleet.core.sqlite",
        "NAME": path,
        "OPTIONS": {
            # IMMEDIATE takes the write lock at BEGIN: a deferred transaction that turns into a writer fails at once, however long the timeout.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # A tick asks some three hundred different questions; of the usual 128 each would be gone before it is asked again.
            "cached_statements": 512,
            # FULL: what was answered as done outlives a power cut. It costs 0.2 to 0.5 ms a commit (median) on a virtual disk, against 0.02 ms.
            "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;PRAGMA cache_size=-65536;PRAGMA temp_store=MEMORY;"
            # A transaction that changes more than the cache holds takes more memory while it lasts: to write its pages out and read them again as it
            # goes on made the end of a demo's seeding twenty times slower (33 s of processor for 15,600 lines, 1.9 s so).
            "PRAGMA cache_spill=0;",
        },
        # Threads need a file: the shared in-memory database answers "table is locked" under two writers.
        "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
    }


DATABASES = {"default": _postgresql(ENV["DATABASE_URL"]) if ENV["DATABASE_URL"] else _sqlite(DATA_DIR / "gpufleet.sqlite3")}

REDIS_URL: str = ENV["REDIS_URL"] or ""
if REDIS_URL:
    CACHES = {
        "default": {
            "BACKEND": "gpufleet.core.cache.SharedCache",
            "LOCATION": ENV["REDIS_URL"],
            "KEY_PREFIX": "gpufleet",
            "OPTIONS": {"serializer": "gpufleet.core.cache.JsonSerializer", "socket_connect_timeout": 1, "socket_timeout": 1},
        }
    }
    CHANNEL_LAYERS = {"default": {"BACKEND": "gpufleet.layers.SharedChannelLayer", "CONFIG": {"hosts": [ENV["REDIS_URL"]]}}}
    CELERY_BROKER_URL = ENV["REDIS_URL"]
else:
    # Limits count here. Were it small, guesses under many names would push out the count of the one that is aimed at.
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 50_000}}}
    CHANNEL_LAYERS = {"default": {"BACKEND": "gpufleet.layers.LocalChannelLayer"}}
    CELERY_BROKER_URL = "memory://localhost/"
    CELERY_BROKER_TRANSPORT = "gpufleet.broker:Transport"

# Sessions in the database: they survive a restart of Redis, and ending one is a row that goes. The table holds hashes of their keys.
SESSION_ENGINE = "gpufleet.core.sessions"
SESSION_COOKIE_AGE = ENV["SESSION_HOURS"] * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = ENV["TLS"]
CSRF_COOKIE_SECURE = ENV["TLS"]
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "gpufleet.errors.csrf_failure"
SECURE_SSL_REDIRECT = ENV["TLS"]
SECURE_HSTS_SECONDS = 31_536_000 if ENV["TLS"] else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = ENV["TLS"]
SECURE_HSTS_PRELOAD = ENV["TLS"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV["TRUSTED_PROXIES"] else None
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024
# The largest file of an import, and the form around it.
LARGEST_REQUEST = DATA_UPLOAD_MAX_MEMORY_SIZE + 1024 * 1024

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}

AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "gpufleet.people.AccountAdapter"
SOCIALACCOUNT_ADAPTER = "gpufleet.people.SignOnAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_RATE_LIMITS = {"login_failed": "20/m/ip,5/5m/key"}
ACCOUNT_SESSION_REMEMBER = False
ALLAUTH_TRUSTED_PROXY_COUNT = ENV["TRUSTED_PROXIES"]
NINJA_NUM_PROXIES = ENV["TRUSTED_PROXIES"]
OIDC_GROUPS_CLAIM = ENV["OIDC_GROUPS_CLAIM"]
SOCIALACCOUNT_AUTO_SIGNUP = True
SOCIALACCOUNT_LOGIN_ON_GET = False
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": ENV["OIDC_NAME"],
                "client_id": ENV["OIDC_CLIENT_ID"],
                "secret": ENV["OIDC_CLIENT_SECRET"],
                "settings": {"server_url": ENV["OIDC_ISSUER"].rstrip("/"), "scope": list(ENV["OIDC_SCOPES"])},
            }
        ]
        if ENV["OIDC_ISSUER"]
        else [],
    }
}

# What the scheduler goes by; scheduler/loop/policy.py makes the engine's settings of it.
SCHEDULER = {
    name: ENV[name]
    for name in (
        "PLACEMENT",
        "MIN_RUNTIME_S",
        "HYSTERESIS_S",
        "STALE_GRACE_S",
        "MAX_MOVES",
        "DEFRAGMENT_ABOVE_PERCENT",
        "DEFRAGMENT_AFTER_S",
        "DEFRAGMENT_MOVES_PER_HOUR",
        "USAGE_WEIGHT",
        "USAGE_HALF_LIFE_S",
        "USAGE_STEP_S",
        "BACKFILL_DEPTH",
        "STARTS_PER_S",
        "START_TIMEOUT_S",
        "LIMIT_WARNING_S",
        "READY_BOUND_S",
        "SCALE_UP_BOUND_S",
        "DEFER_LEAST_PERCENT",
    )
}
# What runs on the console's own machine, and as whom; scheduler/backends/registry.py makes the local back-end's rules of it.
_LOCAL = ("LOCAL", "LOCAL_USER", "LOCAL_SAME_USER", "LOCAL_CHECKPOINTS", "LOCAL_LOGS_MIB", "LOCAL_CGROUP", "LOCAL_PIN", "LOCAL_UIDS")
LOCAL = {name: ENV[name] for name in (*_LOCAL, "SECRETS_DIR", "SECRETS_ENV")}
VIRTUAL_GPUS = ENV["VIRTUAL_GPUS"]
# The users that a Slurm cluster added in the browser may run jobs as, and where a token of the console's user may be sent to.
SLURM_USERS = ENV["SLURM_USERS"]
SLURM_REST_URLS = ENV["SLURM_REST_URLS"]
# The kubeconfig whose contexts an operator may choose for a cluster: no address and no credentials come from a browser.
KUBECONFIG = ENV["KUBECONFIG"]
# Where webhooks may lead, and when one that fails is given up; scheduler/notify/outgoing.py holds every address against it.
WEBHOOKS = {name: ENV[f"WEBHOOK_{name}"] for name in ("NETWORKS", "HTTP", "GIVE_UP_DAYS")}
PUBLIC_URL = ENV["PUBLIC_URL"]
_MAIL = urlsplit(ENV["EMAIL_URL"])
EMAIL_HOST = _MAIL.hostname or ""
EMAIL_PORT = _MAIL.port or (465 if _MAIL.scheme == "smtps" else 587)
EMAIL_HOST_USER = unquote(_MAIL.username or "")
EMAIL_HOST_PASSWORD = unquote(_MAIL.password or "")
EMAIL_USE_SSL = _MAIL.scheme == "smtps"
# Not to this machine: mail to a relay on it goes over no wire.
EMAIL_USE_TLS = _MAIL.scheme == "smtp" and EMAIL_HOST not in ("localhost", "127.0.0.1", "::1")
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = SERVER_EMAIL = ENV["EMAIL_FROM"]
# Where a console in one process listens, for what runs on the same machine; `gpufleet up` says so.
OWN_URL = ""

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
CURRENCY = ENV["CURRENCY"]
RATE_APPROVAL: bool = ENV["RATE_APPROVAL"]
EXPORT_HOURS: int = ENV["EXPORT_HOURS"]
API_REQUESTS_PER_MINUTE: int = ENV["API_REQUESTS_PER_MINUTE"]
# How many jobs a person may submit in a minute, and how many may wait in a queue for which the quota tree states nothing. 0: any number.
SUBMITS_PER_MINUTE: int = ENV["SUBMITS_PER_MINUTE"]
WAITING_LIMIT: int = ENV["WAITING_LIMIT"]

STATIC_URL = "/static/"
STATICFILES_DIRS = [SITE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "gpufleet.core.assets.HashedStorage"},
}
MEDIA_ROOT = DATA_DIR / "media"

CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = PRODUCTION
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_BEAT_SCHEDULER = "gpufleet.celery:Timetable"
# Never by Celery, which would throw away the pool after each task; see gpufleet.celery.connections_kept.
CELERY_DB_REUSE_MAX = sys.maxsize
# Calls to workers are hints that beat makes good within a second, so a broker that is away may cost a request little.
_BROKER_AWAY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1, "socket_connect_timeout": 1}
CELERY_BROKER_TRANSPORT_OPTIONS = _BROKER_AWAY if ENV["REDIS_URL"] else {}

TRACES_URL = ENV["TRACES_URL"]
LOGGING = logging_config(level=ENV["LOG_LEVEL"], form=ENV["LOG_FORMAT"])
LOGGING_CONFIG = "gpufleet.core.logs.configure"
