"""A worker without a gateway in it, for tests of the supervisor's side: `stand_in_worker.py MANNER CHANNEL LISTENING`.

`serve` answers every connection with its process id and counts it; `fail` dies at once; `deaf` serves and does not
drain; `babble` answers with what is no message when it is asked to count. It speaks the real channel.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

from proxy.channel import Channel, Count, Counted, Drain, Ready
from proxy.metrics import Metrics

BABBLE: Any = "no message"


async def main(manner: str, channel_fd: int, listening_fd: int) -> None:
    """Play a worker until told to drain, or until the supervisor hangs up."""
    if manner == "fail":
        sys.exit(3)
    metrics = Metrics()
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    await channel.receive()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        metrics.cache_stores_total.inc()
        metrics.open_streams.set(1)
        await channel.send(Counted(metrics.snapshot()))
        writer.write(str(os.getpid()).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=socket.socket(fileno=listening_fd))
    await channel.send(Ready())
    while (message := await channel.receive()) is not None:
        if isinstance(message, Count):
            await channel.send(BABBLE if manner == "babble" else Counted(metrics.snapshot(), message.turn))
        elif isinstance(message, Drain) and manner != "deaf":
            break
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
