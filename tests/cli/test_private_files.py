"""Both daemons make files that other users of the host cannot read, however they are started."""

import signal
import subprocess
import sys
from pathlib import Path

from support.wire_agent import wait_until

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
_COMMAND = [sys.executable, "-c", "from gpusonde.cli.main import main; raise SystemExit(main())"]


def start(*arguments):
    """A command as a person starts it, whose umask lets everybody read."""
    return subprocess.Popen([*_COMMAND, *arguments], umask=0o022, stderr=subprocess.DEVNULL)


def test_the_files_of_both_daemons_are_their_users_own(tmp_path):
    store, spool = tmp_path / "store", tmp_path / "spool"
    collector = start(
        "collector", "--store", str(store), "--listen", "127.0.0.1:0", "--set", "metrics.listen=",
        "--set", "store.segment_interval=1s", "--set", "store.reserve_bytes=1MiB",
    )  # fmt: skip
    try:
        wait_until((store / "address").exists, 120, "the collector")
        wait_until((store / "address").read_text, 120, "its address")
        agent = start(
            "agent", "--replay", str(DEMO_TRACE), "--speed", "200", "--spool", str(spool), "--id", "a",
            "--collector", (store / "address").read_text().strip(), "--set", "metrics.listen=",
        )  # fmt: skip
        assert agent.wait(120) == 0
        wait_until(lambda: list(store.glob("segments/*.parquet")), 120, "a segment")
        paths = [path for folder in (store, spool) for path in (folder, *folder.rglob("*"))]
        open_to_others = {str(path): oct(path.stat().st_mode) for path in paths if path.stat().st_mode & 0o077}
        assert open_to_others == {}
        assert any(path.suffix == ".seg" for path in paths)
    finally:
        collector.send_signal(signal.SIGTERM)
        assert collector.wait(200) == 0
