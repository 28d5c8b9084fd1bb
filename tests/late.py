"""A way between two servers on which one direction is late, as over a long line."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

READ_BYTES = 65536
LOOK_S = 0.02


class LateWay:
    """Connections to ``port`` reach ``target`` at once; what it answers comes ``late_s`` later."""

    def __init__(self, target: int, late_s: float) -> None:
        self._target, self._late_s = target, late_s
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._carry, "127.0.0.1", 0)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="late-way", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            there, target = await self._reach()
            with contextlib.closing(target):
                ways = [_pass(reader, target, 0.0), _pass(there, writer, self._late_s)]
                await asyncio.gather(*ways)
        self._tasks.discard(task)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the target. Who came first waits, as one who is refused comes again."""
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.sleep(LOOK_S)  # until it listens

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter, late_s: float) -> None:
    """Whatever comes, in its order, each piece ``late_s`` after it came."""
    loop = asyncio.get_running_loop()
    while data := await source.read(READ_BYTES):
        loop.call_later(late_s, target.write, data)
    loop.call_later(late_s, target.close)
