"""torchft's lighthouse: `server BIND PORT N` or `clients BIND PORT N`. Its barrier is the quorum of all replicas."""
import datetime
import glob
import importlib.util
import os
import sys
import sysconfig
import threading
import time

from crew import serve_commands

LIMIT = datetime.timedelta(seconds=100)


def load():
    """The extension alone: the package around it needs more than a lighthouse does."""
    path = glob.glob(os.path.join(sysconfig.get_paths()["platlib"], "torchft", "_torchft*.so"))[0]
    spec = importlib.util.spec_from_file_location("torchft._torchft", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(bind, port, size):
    server = load().LighthouseServer(bind=f"{bind}:{port}", min_replicas=size, join_timeout_ms=60_000,
                                     heartbeat_timeout_ms=100_000)
    print("listening on", f"{bind}:{port}", flush=True)
    while server:
        time.sleep(3600)


def clients(bind, port, size):
    torchft = load()
    connected = [None] * size

    def register(i):  # connect, and say for the first time that one is there
        connected[i] = torchft.LighthouseClient(f"http://127.0.0.1:{port}", LIMIT)
        connected[i].heartbeat(f"r{i}", LIMIT)

    def beat():
        start, count, threads = time.monotonic(), max(4096, size), 8

        def some(first):
            for k in range(first, count, threads):
                connected[k % size].heartbeat(f"r{k % size}", LIMIT)

        workers = [threading.Thread(target=some, args=(k,)) for k in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return {"messages": count, "seconds": time.monotonic() - start}

    serve_commands(size, register, lambda i, rounds: connected[i].quorum(f"r{i}", LIMIT, "a", "s", rounds, 1, False), beat)


(serve if sys.argv[1] == "server" else clients)(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
