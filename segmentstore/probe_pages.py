"""The pages of the metrics port for probes: `/live` and `/ready`; all else is the metrics'.

- `/live` is 200 while the event loop answers. No service is asked: a process that is started again
  because ZooKeeper, a bookie or Tier 2 is away serves less than before.
- `/ready` is 200 while all containers that are assigned to this process are served, else 503; the
  body says what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from segmentstore.contracts.health_tree import StoreHealth

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LIVE: Final = "/live"
READY: Final = "/ready"


def with_probes(metrics: WSGIApplication, ask: Callable[[], StoreHealth]) -> WSGIApplication:
    """The application `metrics`, with the pages of the probes before it.

    `ask` gives the store's health. That it raises TimeoutError or RuntimeError says that the event
    loop does not answer.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # A slash more must not give a probe the metrics, which are always there.
        path = environ.get("PATH_INFO", "").rstrip("/")
        if path not in (LIVE, READY):
            return metrics(environ, start_response)
        said: dict[str, object] = {}
        try:
            health = ask()
        except (TimeoutError, RuntimeError) as error:
            is_well = False
            said["error"] = f"the event loop does not answer: {error}"
        else:
            is_well = path == LIVE or health["ready"]
            if path == READY:
                said["waits_for"] = health["waits_for"]
        body = json.dumps(said).encode() + b"\n"
        status = "200 OK" if is_well else "503 Service Unavailable"
        length = str(len(body))
        headers = [("Content-Type", "application/json"), ("Content-Length", length)]
        start_response(status, headers)
        return [body]

    return answer
