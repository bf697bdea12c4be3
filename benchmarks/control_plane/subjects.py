"""One pass of a case over one subject: a fresh server, its clients, and the figures as {name: value}, in seconds, microseconds,
kilobytes or a second as the name says."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

from processes import BIN, Clients, Server, Unavailable, free_port, own_network, without_name_look_ups

HERE = os.path.dirname(os.path.abspath(__file__))
BEAT_INTERVAL_S, BEAT_WINDOW_S = 0.5, 3.0
READOPT_LIMIT_S = 20


def _beat(server, clients, command):
    """Microseconds of server CPU a heartbeat, and cores of it."""
    before = server.cpu_s()
    beat = clients.ask(command)
    used = server.cpu_s() - before
    if used < 0.03:  # a few of the 10 ms in which the kernel counts
        return None, None
    return used / beat["messages"] * 1e6, used / beat["seconds"]


def _barriers(clients, count):
    out = {}
    if count:
        together, alone = clients.ask(f"barriers {count}"), clients.ask(f"releases {count}")
        out = {"barrier_together_s": together["all"]["p50"], "barrier_half_s": alone["half"]["p50"],
               "barrier_all_s": alone["all"]["p50"]}
    return out


def floor(case):
    server = Server([os.path.join(BIN, "bench-control-floor")], "listening on ")
    clients = Clients([os.path.join(BIN, "bench-control-load"), "floor", server.address, str(case.workers), str(case.share)])
    try:
        rss = server.rss_kb()
        row = {"registrations_s": case.workers / clients.ask("register")["max"],
               "streams_s": case.workers / clients.ask("open")["max"]}
        row["cpu_us_heartbeat"], row["cores_heartbeats"] = _beat(server, clients, f"beat {BEAT_INTERVAL_S} {BEAT_WINDOW_S}")
        row["memory_kb"] = (server.rss_kb() - rss) / case.workers
        row["submit_s"] = clients.ask("broadcast 800 3")["p50"]
        row["unique_id_s"] = clients.ask("broadcast 300 3")["p50"]
        directive = clients.ask(f"broadcast 40 {case.directives}")
        row["directive_p50_s"], row["directive_p99_s"] = directive["p50"], directive["p99"]
        row.update(_barriers(clients, case.barriers))
        return row
    finally:
        clients.end()
        server.end()


def _cli(arguments, rounds=9):
    seconds = []
    for _ in range(rounds):
        start = time.monotonic()
        run = subprocess.run([os.path.join(BIN, "muster"), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds.append(time.monotonic() - start)
        if run.returncode != 0:
            raise Unavailable(f"muster {arguments[0]} ended with {run.returncode}: {run.stderr.strip()[:200]}")
    return sorted(seconds)[rounds // 2]


def _coordinator(folder, listen):
    # Agents beat every half second in the window where that is measured, and are quiet in between: nobody shall be suspect then.
    return Server([os.path.join(BIN, "muster-coordinator"), "--listen", listen, "--state-dir", folder,
                   "--heartbeat-interval-ms", "60000", "--heartbeat-timeout-ms", "120000"], "listening on ")


def _readopt(server, clients, folder):
    """kill -9 to the last welcome of a coordinator on the same port and folder. None: it did not know its agents any more."""
    clients.send(f"readopt {READOPT_LIMIT_S}")
    clients.receive()
    killed = time.monotonic()
    server.end()
    restarted = _coordinator(folder, server.address)
    try:
        result = clients.receive(READOPT_LIMIT_S + 10)
    except Unavailable:
        result = {"registered_again": 1}
    return restarted, None if result["registered_again"] else result["end"] - killed


def muster(case):
    folder = tempfile.mkdtemp(prefix="muster-bench-control-")
    server = clients = None
    try:
        server = _coordinator(folder, "127.0.0.1:0")
        clients = Clients([os.path.join(BIN, "bench-control-load"), "muster", server.address, str(case.workers), str(case.share)])
        rss = server.rss_kb()
        row = {"registrations_s": case.workers / clients.ask("register")["max"],
               "streams_s": case.workers / clients.ask("open")["max"]}
        row["cpu_us_heartbeat"], row["cores_heartbeats"] = _beat(server, clients, f"beat {BEAT_INTERVAL_S} {BEAT_WINDOW_S}")
        row["memory_kb"] = (server.rss_kb() - rss) / case.workers
        submits, unique_ids, kills = [], [], []
        for job in range(case.jobs):
            submitted = clients.ask("submit")
            submits.append(submitted["max"])
            formed = clients.ask("form")
            unique_ids.append(formed["unique_id"]["max"])
            if job == 0:
                directive = clients.ask(f"directives {case.directives}")
                row["directive_p50_s"], row["directive_p99_s"] = directive["applied"]["p50"], directive["applied"]["p99"]
                row["directive_reached_p99_s"] = directive["reached"]["p99"]
                row["step_ack_s"] = clients.ask("steps 20")["p50"]
                row.update(_barriers(clients, case.barriers))
                if case.workers <= 1024:
                    row["exchange_s"] = clients.ask("exchange")["max"]
                where = ["--coordinator", server.address]
                row["cli_status_s"] = _cli(["status", submitted["job_id"], *where])
                row["cli_list_s"] = _cli(["list", *where])
            if job == 0:
                cpu = server.cpu_s()
                lost = clients.ask("lose 0.01")
                row["lose_cpu_s"], row["lose_s"], row["lose_step_s"] = server.cpu_s() - cpu, lost["max"], lost["stepped"]
                row["lose_memory_kb"] = (server.rss_kb() - rss) / case.workers
            if job + 1 < case.jobs:
                kills.append(clients.ask("kill")["released"])
        row["submit_s"] = sorted(submits)[len(submits) // 2]
        row["unique_id_s"] = sorted(unique_ids)[len(unique_ids) // 2]
        if kills:
            row["kill_s"] = sorted(kills)[len(kills) // 2]
        server, row["readopt_s"] = _readopt(server, clients, folder)
        return row
    finally:
        for process in (clients, server):
            if process is not None:
                process.end()
        shutil.rmtree(folder, ignore_errors=True)


def tcpstore(case):
    program = os.path.join(BIN, "bench-control-tcpstore")
    server = Server(without_name_look_ups([program, "server"]), "listening on ")
    clients = Clients(without_name_look_ups([program, "clients", server.address.split(":")[1], str(case.workers)]))
    try:
        rss = server.rss_kb()
        row = {"registrations_s": case.workers / clients.ask("register")["max"]}
        row["memory_kb"] = (server.rss_kb() - rss) / case.workers
        row.update(_barriers(clients, case.barriers))
        return row
    finally:
        clients.end()
        server.end()


def _python_peer(name, case, connections_apart):
    """connections_apart: the clients need a namespace of addresses to have a connection each."""
    alone = own_network() if connections_apart else None
    where = ["0.0.0.0" if alone else "127.0.0.1", str(free_port()), str(case.workers)]
    command = [sys.executable, os.path.join(HERE, f"peer_{name}.py")]
    server = Server((alone or []) + [*command, "server", *where], "listening on ")
    clients = Clients((["nsenter", "-t", str(server.process.pid), "-n"] if alone else []) + [*command, "clients", *where])
    try:
        rss = server.rss_kb()
        row = {"registrations_s": case.workers / clients.ask("register")["max"]}
        row["cpu_us_heartbeat"], _ = _beat(server, clients, "beat")
        row["memory_kb"] = (server.rss_kb() - rss) / case.workers
        row.update(_barriers(clients, min(3, case.barriers)))
        return row
    finally:
        clients.end()
        server.end()


def jax(case):
    return _python_peer("jax", case, connections_apart=True)


def torchft(case):
    if case.workers > 1024:
        raise Unavailable("not run above 1,024: its quorum sends every replica the list of all")
    return _python_peer("torchft", case, connections_apart=False)
