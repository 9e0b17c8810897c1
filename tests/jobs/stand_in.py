"""A program in the place of the trainer, for tests of what runs replicas: does what its arguments say.

Each argument is ROLE=STEP,STEP,...: a replica does the steps of its own role (the task type of TF_CONFIG, or
chief for a lone one; `worker1` is the second of pool 1). Steps: `say:TEXT`, `env` (writes its variables to
FOLDER/<name>.json), `sleep:S`, `exit:CODE`, `first:STEP` (only on its first start), `signal:N` (itself),
`trap:CODE` (SIGTERM exits with it), `deaf` (SIGTERM is ignored), `child` (starts a process that sleeps),
`meet` (listens at its own address and reaches everybody else's), `mark:NAME` (writes an empty FOLDER/NAME),
`await:NAME` (until FOLDER/NAME is there: with `mark`, how a test says what comes after what),
`again:NAME` (until replica NAME has been started a second time).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SERVICE = ("AIP_", "CLOUD_ML_", "TF_CONFIG", "CLUSTER_SPEC", "TPU_", "MY_")
FOLDER = Path(os.environ["MY_FOLDER"])
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
task = config.get("task", {"type": "chief", "index": 0})
name = task["type"] if task["type"] == "chief" else f"{task['type']}{task['index']}"
starts = FOLDER / f"{name}.starts"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")


def meet() -> None:
    """Proves that every address of the cluster is somebody's."""
    cluster = config["cluster"]
    own = cluster[task["type"]][task["index"]]
    everybody = [address for kind in ("chief", "worker") for address in cluster.get(kind, [])]
    server = socket.create_server(("127.0.0.1", int(own.rpartition(":")[2])))
    for address in everybody:
        host, _, port = address.rpartition(":")
        for _ in range(600):
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit(f"{own} can't reach {address}")
    for _ in everybody:
        server.accept()
    print(f"met {len(everybody)}", flush=True)


def wait(condition: Callable[[], bool], what: str) -> None:
    """Waits until something is so; a hang is an error."""
    limit = time.monotonic() + 120
    while not condition():
        if time.monotonic() > limit:
            sys.exit(f"{name} waited in vain for {what}")
        time.sleep(0.02)


def act(step: str) -> None:
    """Does one step."""
    verb, _, value = step.partition(":")
    if verb == "say":
        print(value, flush=True)
    elif verb == "env":
        found = {key: text for key, text in os.environ.items() if key.startswith(SERVICE)}
        (FOLDER / f"{name}.json").write_text(json.dumps({"env": found, "argv": sys.argv[1:]}))
    elif verb == "sleep":
        time.sleep(float(value))
    elif verb == "exit":
        sys.exit(int(value))
    elif verb == "first" and starts.read_text() == "x":
        act(value)
    elif verb == "signal":
        os.kill(os.getpid(), int(value))
    elif verb == "trap":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(value)))
    elif verb == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif verb == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (FOLDER / f"{name}.child").write_text(str(child.pid))
    elif verb == "meet":
        meet()
    elif verb == "mark":
        (FOLDER / value).touch()
    elif verb == "await":
        wait((FOLDER / value).exists, value)
    elif verb == "again":
        log = FOLDER / f"{value}.starts"
        wait(lambda: log.exists() and len(log.read_text()) > 1, f"the second start of {value}")
    elif verb != "first":
        sys.exit(f"unknown step {step}")


(FOLDER / f"{name}.pid").write_text(str(os.getpid()))
for argument in sys.argv[1:]:
    role, _, steps = argument.removeprefix("--").partition("=")
    if role in (task["type"], name):
        for step in steps.split(","):
            act(step)
