"""Processes of one subject: nothing outlives this script; waiting; the steps that workers report."""
import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import namedtuple

_libc = ctypes.CDLL(None)
_running, _folders = [], []
Step = namedtuple("Step", "time rank pid step width")


class Failed(Exception):
    """A subject that cannot be run, or has not recovered, with the reason."""


def start(command, log, **env):
    """In a process group of its own, with output to the file `log`."""
    def before_exec():
        os.setpgid(0, 0)
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    process = subprocess.Popen(command, stdout=open(log, "ab"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                               preexec_fn=before_exec, env={**os.environ, **env})
    _running.append(process)
    return process


def end(process, limit_s=15):
    """SIGTERM, then SIGKILL to the whole group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process in _running:
        _running.remove(process)


def folder():
    path = tempfile.mkdtemp(prefix="muster-bench-recovery-")
    _folders.append(path)
    return path


def end_all():
    for process in list(_running):
        end(process, 1)
    for path in _folders:
        shutil.rmtree(path, ignore_errors=True)


atexit.register(end_all)
for _signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_signal, lambda number, frame: (end_all(), os._exit(128 + number)))


def wait_for(what, condition, limit_s=60, every_s=0.005):
    """condition()'s first true value; Failed names `what` after the limit."""
    until = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {limit_s} s")
        time.sleep(every_s)


def children(pid):
    """Direct ones."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                        found.append(int(entry))
            except (OSError, IndexError):
                pass
    return found


class Lines:
    """New lines of a growing file, read on demand."""

    def __init__(self, path):
        self.path, self.offset, self.rest = path, 0, ""

    def new(self):
        try:
            with open(self.path) as f:
                f.seek(self.offset)
                text = f.read()
        except FileNotFoundError:
            return []
        self.offset += len(text)
        *lines, self.rest = (self.rest + text).split("\n")
        return lines
