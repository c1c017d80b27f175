"""Sends spans to a collector, and says now and then that it takes none. Imported where there is one only: the packages behind it take a second."""

import logging
import re
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from gpufleet.core.spans import SAID_EVERY

log = logging.getLogger(__name__)


class Exporter(OTLPSpanExporter):
    """The package logs several lines for each batch that fails, which is every few seconds (`gpufleet.core.logs` leaves them out)."""

    _said = float("-inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS and time.monotonic() - self._said >= SAID_EVERY:
            self._said = time.monotonic()
            where = re.sub("(?<=://)[^/]*@", "", self._endpoint)  # without a password
            log.warning("the collector of traces at %s takes no spans: %d are lost", where, len(spans))
        return result
