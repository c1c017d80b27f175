"""The one entry for the web server: static files, pages and live sockets."""

import gc
import os
import sys
from importlib import import_module
from typing import Any

import django

SWITCH_SECONDS = 0.001
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpufleet.settings")


def _assembled() -> Any:
    gc.disable()
    django.setup(set_prefix=False)
    # Only now, as the line above loads the apps that these need.
    from channels.routing import ProtocolTypeRouter
    from django.conf import settings

    from gpufleet.core.assets import StaticServer
    from gpufleet.core.bodies import BodyLimit
    from gpufleet.core.undelayed import Undelayed
    from gpufleet.handler import PagesHandler
    from gpufleet.live import websockets

    # A fleet is read, or a large answer written, beside requests that mostly wait for the database: they get their turn sooner than after the usual
    # five milliseconds, which each of their questions would cost them.
    sys.setswitchinterval(SWITCH_SECONDS)
    # Every page and the API are read now: Django would do so at the first request, which took a second longer in each process. What is read stays,
    # so the garbage collector need not go through it again and again.
    import_module(settings.ROOT_URLCONF)
    gc.collect()
    gc.freeze()
    gc.enable()
    return Undelayed(StaticServer(ProtocolTypeRouter({"http": BodyLimit(PagesHandler(), settings.LARGEST_REQUEST), "websocket": websockets})))


application = _assembled()
