"""Server and client processes pinned to a core each, what a server has used so far, and the line protocol of the clients."""
import atexit
import ctypes
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[1 if len(CORES) > 1 else 0]
BIN = os.environ.get("MUSTER_BENCH_BIN", os.path.join("build", "bin"))
_running, _keep = [], []
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Unavailable(Exception):
    """A peer or a case that cannot be run here, with the reason."""


def raise_descriptor_limit(connections):
    """Servers and clients inherit it; each connection takes one descriptor on either side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Unavailable(f"needs {needed} file descriptors, the hard limit is {hard}: raise it (ulimit -Hn)")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _pin(core):
    def before_exec():
        os.sched_setaffinity(0, {core})
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives this script, however it ends
    return before_exec


_FILES_ONLY = 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"'  # $0: a configuration that asks no name server


def without_name_look_ups(command):
    """The command in a mount namespace of its own where names come from files only: TCPStore asks for the name of each address,
    which takes seconds where no name server answers. As it is where that is not allowed (no root)."""
    conf = tempfile.NamedTemporaryFile("w", prefix="nsswitch-", suffix=".conf")
    conf.write("passwd: files\ngroup: files\nhosts: files\n")
    conf.flush()
    wrapped = ["unshare", "-m", "bash", "-c", _FILES_ONLY, conf.name, *command]
    if subprocess.run([*wrapped[:6], "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return command
    _keep.append(conf)
    return wrapped


def own_network():
    """What to put before a command so that it has a network of its own with nothing but loopback; None where that is not allowed."""
    prefix = ["unshare", "-n", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
    try:
        return prefix if subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode == 0 else None
    except OSError:
        return None


def start(command, core, **options):
    process = subprocess.Popen(command, preexec_fn=_pin(core), text=True, **options)
    _running.append(process)
    return process


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    if process in _running:
        _running.remove(process)


def end_all():
    for process in list(_running):
        end(process)


atexit.register(end_all)
for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_signal, lambda number, frame: (end_all(), os._exit(128 + number)))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process on the server's core."""

    def __init__(self, command, ready, log=None):
        self.process = start(command, SERVER_CORE, stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL)
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise Unavailable(f"{command[0]} ended with {self.process.wait()}")
            if line.startswith(ready):
                self.address = line[len(ready):].strip()
                break
        threading.Thread(target=self.process.stdout.read, daemon=True).start()  # so that it never blocks on its output

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def end(self):
        end(self.process)


class Clients:
    """A process that plays many clients on the clients' core: a command and its JSON answer are a line each."""

    def __init__(self, command):
        self.command = command
        self.process = start(command, CLIENT_CORE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines, self.errors = queue.Queue(), []
        threading.Thread(target=self._read, args=(self.process.stdout, self.lines.put), daemon=True).start()
        threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append), daemon=True).start()

    @staticmethod
    def _read(pipe, take):
        for line in pipe:
            take(line)
        take("")

    def send(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why

    def receive(self, limit_s=120):
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            raise Unavailable(f"no answer within {limit_s} s") from None
        if not line:
            time.sleep(0.1)
            raise Unavailable("; ".join(e.strip() for e in self.errors if e.strip())[-300:] or f"{self.command[0]} ended")
        return json.loads(line)

    def ask(self, line, limit_s=120):
        self.send(line)
        return self.receive(limit_s)

    def end(self):
        end(self.process)
