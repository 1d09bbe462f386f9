"""A worker without a gateway in it, for tests of the supervisor's side: `stand_in_worker.py MANNER CHANNEL LISTENING`.

`serve` answers every connection with its process id and counts it; `fail` dies at once; `deaf` serves and does not
drain; `babble` answers with what is no message when it is asked to count; `stubborn` prepares no other configuration;
`forgetful` does, and cannot switch to it; `frail` dies of preparing; `slow` never answers; `late` follows none of both,
and says so once it is asked to count. Answers tell the process id and the configuration; whoever begins with the one
that is called `deadly` dies. It speaks the real channel.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

from proxy.channel import Begin, Channel, Count, Counted, Done, Drain, Prepare, Ready, Switch
from proxy.metrics import Metrics

BABBLE: Any = "no message"


async def main(manner: str, channel_fd: int, listening_fd: int) -> None:
    """Play a worker until told to drain, or until the supervisor hangs up."""
    if manner == "fail":
        sys.exit(3)
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    begin = await channel.receive()
    assert isinstance(begin, Begin)
    if begin.configuration == b"deadly":
        sys.exit(3)
    worker = StandIn(manner, channel, begin.configuration)
    server = await asyncio.start_server(worker.answer, sock=socket.socket(fileno=listening_fd))
    await channel.send(Ready())
    while (message := await channel.receive()) is not None:
        if isinstance(message, Drain) and manner != "deaf":
            break
        if isinstance(message, Count):
            while worker.unsaid:
                await channel.send(worker.unsaid.pop(0))
            await channel.send(BABBLE if manner == "babble" else Counted(worker.metrics.snapshot(), message.turn))
        elif isinstance(message, Prepare | Switch) and manner != "slow":
            done = Done(message.turn, worker.follow(message))
            if manner == "late":
                worker.unsaid.append(done)
            else:
                await channel.send(done)
    server.close()


class StandIn:
    """What there is of the worker while it serves."""

    def __init__(self, manner: str, channel: Channel, configuration: bytes) -> None:
        self.metrics = Metrics()
        self.unsaid: list[Done] = []
        self._manner = manner
        self._channel = channel
        self._configuration = self._prepared = configuration

    async def answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self.metrics.cache_stores_total.inc()
        self.metrics.open_streams.set(1)
        await self._channel.send(Counted(self.metrics.snapshot()))
        writer.write(f"{os.getpid()} {self._configuration.decode()}".encode())
        await writer.drain()
        writer.close()

    def follow(self, order: Prepare | Switch) -> str | None:
        """Follow an order, or say why not."""
        if self._manner in ("stubborn", "late"):
            return "it will not"
        if isinstance(order, Switch):
            if self._manner == "forgetful":
                return "it has forgotten"
            self._configuration = self._prepared
        elif self._manner == "frail":
            sys.exit(3)
        else:
            self._prepared = order.configuration
        return None


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
