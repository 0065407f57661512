"""Timers that the kernel may let off late, and whose they are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_SCRIPT = """
import json, threading
from pathlib import Path
from gpusonde.service.process import late_timers
def slack_s():
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text()) * 1e-9
def of_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(slack_s()))
    thread.start()
    thread.join()
    return found[0]
before = slack_s()
with late_timers(0.25):
    inside = slack_s(), of_thread()
print(json.dumps([before, inside, slack_s(), of_thread()]))
"""

_AGENT = """
import asyncio, json
from pathlib import Path
from gpusonde.agent.uplink.session import StreamLimits
from gpusonde.agent.uplink.uplink import open_channel
from gpusonde.service.tls import Access
async def slacks():
    channel = open_channel("127.0.0.1:1", Access(), StreamLimits())
    channel.get_state(try_to_connect=True)
    await asyncio.sleep(0.2)
    tasks = [task for task in Path("/proc/self/task").iterdir()]
    found = [((t / "comm").read_text().strip(), int(Path(f"/proc/{t.name}/timerslack_ns").read_text())) for t in tasks]
    await channel.close()
    return found
print(json.dumps(asyncio.run(slacks())))
"""


def _run(script: str) -> object:
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_timers_are_late_inside_only_and_in_threads_begun_there() -> None:
    before, inside, after, of_thread_after = _run(_SCRIPT)  # type: ignore[misc]
    assert inside == [0.25, 0.25]
    assert before == after == of_thread_after < 0.001


def test_an_agent_s_own_thread_is_woken_up_on_time_and_grpc_s_idle_ones_together_with_it() -> None:
    found = _run(_AGENT)
    own = [slack_ns for name, slack_ns in found if name.startswith("python")]  # type: ignore[attr-defined]
    of_grpc = [slack_ns for name, slack_ns in found if name == "event_engine"]  # type: ignore[attr-defined]
    assert min(own) < 1_000_000
    assert of_grpc
    assert set(of_grpc) == {400_000_000}
