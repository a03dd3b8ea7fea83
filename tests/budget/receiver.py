"""A receiver of webhooks in this process: a real HTTP server on a random port that answers as a test wants."""

import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

SECRET = bytes(range(32))
SECRET_TEXT = "whsec_" + base64.b64encode(SECRET).decode()


class Post(NamedTuple):
    """One post as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """`answers`: a status for each post, the last one for all others; 0 hangs until the end, -1 drips, -2 is no HTTP."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.posts: list[Post] = []
        self.ended = threading.Event()
        self._answers = answers

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Take a post in and answer it."""
        body = handler.rfile.read(int(handler.headers["content-length"]))
        self.posts.append(Post(handler.path, {name.lower(): value for name, value in handler.headers.items()}, body))
        status = self._answers[min(len(self.posts), len(self._answers)) - 1]
        if status == 0:
            self.ended.wait()
        elif status == -1:
            # A byte at a time: no single wait is long.
            while not self.ended.wait(0.02):
                handler.wfile.write(b"H")
        elif status == -2:
            handler.wfile.write(b"what?\x00\n\n")
        else:
            handler.send_response(status)
            if 300 <= status < 400:
                handler.send_header("location", "/elsewhere")
            handler.end_headers()


@contextmanager
def receiving(*answers: int) -> Iterator[tuple[str, Receiver]]:
    """A receiver's URL and what it got."""
    receiver = Receiver(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                receiver.answer(self)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing: the test looks at what came."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/s3cret?room=7", receiver
    finally:
        receiver.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
