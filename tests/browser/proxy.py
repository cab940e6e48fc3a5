"""A small reverse proxy, as one that puts a whole server below a path. It says so as proxies do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """The address at which what listens on `port` is found below `prefix`."""

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            if not self.path.startswith(prefix):
                return self.send_error(404)
            body = self.rfile.read(int(self.headers.get("content-length") or 0)) or None
            told = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            told |= {"X-Forwarded-Prefix": prefix, "X-Forwarded-For": "203.0.113.7"}
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                upstream.request(self.command, self.path.removeprefix(prefix), body, told)
                self.pass_on(upstream.getresponse())
            except OSError:
                self.close_connection = True  # one of both has gone
            finally:
                upstream.close()
            return None

        def pass_on(self, answer: http.client.HTTPResponse) -> None:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while data := answer.read1(65536):
                self.wfile.write(data)
            self.close_connection = True

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do  # noqa: N815 - the names are the library's

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256  # a page asks for all its modules at once

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{prefix}"
        finally:
            server.shutdown()
            thread.join()
