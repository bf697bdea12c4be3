"""Passes bytes between whoever connects and ADDRESS, until it is stopped. Usage: relay.py ADDRESS FILE (its own address goes there)"""
import asyncio
import os
import sys

host, port = sys.argv[1].rsplit(":", 1)


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def serve(reader, writer):
    try:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with open(sys.argv[2] + ".new", "w") as f:
        f.write("127.0.0.1:%d" % server.sockets[0].getsockname()[1])
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    await server.serve_forever()


asyncio.run(main())
