"""JAX's coordination service (jaxlib): `server BIND PORT N` or `clients BIND PORT N`. With BIND 0.0.0.0 (in a network namespace that has
nothing but loopback) each client calls an address of its own in 127/8: else all of a process would share one connection."""
import os
import sys
import time

from crew import serve_commands
from jaxlib import _jax

HEARTBEAT_TIMEOUT_S = 10  # a client beats every half of it, by a thread of its own


def serve(bind, port, size):
    service = _jax.get_distributed_runtime_service(f"{bind}:{port}", size, heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
                                                   shutdown_timeout=5)
    print("listening on", f"{bind}:{port}", flush=True)
    while service:
        time.sleep(3600)


def clients(bind, port, size):
    def address(i):
        return f"127.{1 + i // 250}.1.{1 + i % 250}" if bind == "0.0.0.0" else bind

    connected = [_jax.get_distributed_runtime_client(f"{address(i)}:{port}", i, init_timeout=60,
                                                     heartbeat_timeout=HEARTBEAT_TIMEOUT_S, shutdown_timeout=5,
                                                     shutdown_on_destruction=False,
                                                     missed_heartbeat_callback=lambda *a: os._exit(3)) for i in range(size)]

    def beat():
        time.sleep(HEARTBEAT_TIMEOUT_S / 2)
        return {"messages": size, "seconds": HEARTBEAT_TIMEOUT_S / 2}

    serve_commands(size, lambda i: connected[i].connect(),  # returns when all are there
                   lambda i, rounds: connected[i].wait_at_barrier(f"barrier{rounds}", 60_000), beat)


(serve if sys.argv[1] == "server" else clients)(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
