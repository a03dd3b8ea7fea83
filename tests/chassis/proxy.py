"""A line to PostgreSQL that breaks where a test wants: after a COMMIT was carried out, before anybody hears of it."""

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Listens on a random port and hands everything through, until told to lose an answer."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._lose = False
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self.commits_lost = 0

    @property
    def url(self) -> str:
        """The database's URL through this line."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        return f"postgresql://{user}@127.0.0.1:{port}{self._parts.path}?sslmode=disable"

    def lose_next_commit(self) -> None:
        """The next COMMIT reaches the server, and its answer nobody."""
        self._lose = True

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)
        up_reader, up_writer = await self._connect()
        cut = asyncio.Event()
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as tasks:
                ways = [
                    tasks.create_task(self._carry(reader, up_writer, cut, watch=True)),
                    tasks.create_task(self._carry(up_reader, writer, cut, watch=False)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
        for end in (writer, up_writer):
            end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = parse_qs(self._parts.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.5432")
        return await asyncio.open_connection(self._parts.hostname, self._parts.port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event, *, watch: bool) -> None:
        while data := await reader.read(65_536):
            if watch and self._lose and b"COMMIT" in data:
                self._lose = False
                cut.set()
            elif not watch and cut.is_set():
                # The server has answered, so it has committed.
                self.commits_lost += 1
                return
            writer.write(data)
            await writer.drain()
