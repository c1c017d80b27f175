"""The one entry for the web server: static files, pages and live sockets."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpufleet.settings")


def _assembled() -> Any:
    pages = get_asgi_application()
    # Only now, as the line above loads the apps that these need.
    from channels.routing import ProtocolTypeRouter
    from django.conf import settings

    from gpufleet.core.assets import StaticServer
    from gpufleet.core.bodies import BodyLimit
    from gpufleet.live import websockets

    return StaticServer(ProtocolTypeRouter({"http": BodyLimit(pages, settings.LARGEST_REQUEST), "websocket": websockets}))


application = _assembled()
