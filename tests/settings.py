"""The product's own settings over a folder that lives as long as the test run, so that no test ever touches `./data`.

pytest-django reads settings before any conftest.py, so the environment has to be prepared here. What the tests choose themselves is named TEST_…
(`GPUFLEET_…` belongs to the product, which refuses names that it does not know).
"""

import atexit
import os
import shutil
import tempfile

for _name in [name for name in os.environ if name.startswith("GPUFLEET_")]:
    del os.environ[_name]

_folder = tempfile.mkdtemp(prefix="gpufleet-tests-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
# Programs that tests start inherit it.
os.environ["GPUFLEET_DATA_DIR"] = _folder
os.environ["GPUFLEET_LOG_LEVEL"] = "warning"
if os.environ.get("TEST_DATABASE_URL"):
    os.environ["GPUFLEET_DATABASE_URL"] = os.environ["TEST_DATABASE_URL"]

from gpufleet.settings import *  # noqa: E402, F403
from gpufleet.settings import DATABASES  # noqa: E402

if os.environ.get("TEST_DATABASE_IS_MADE"):
    DATABASES["default"]["TEST"] = {"NAME": DATABASES["default"]["NAME"]}

# Nobody's work is lost with a test's database: where there is room, no commit has to wait for a disk.
MEMORY = "/dev/shm"
if "sqlite" in DATABASES["default"]["ENGINE"] and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 1 << 30:
    _database = tempfile.mkdtemp(prefix="gpufleet-tests-", dir=MEMORY)
    atexit.register(shutil.rmtree, _database, ignore_errors=True)
    DATABASES["default"]["TEST"]["NAME"] = f"{_database}/test.sqlite3"

# A password that is slow to check is right for people and wrong for a thousand sign-ins of a test run.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
