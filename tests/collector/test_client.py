"""The clients' face, as a program sees it that has no collector."""

import subprocess
import sys


def test_the_clients_import_no_module_of_the_server():
    code = (
        "import sys; import gpusonde.collector.client; "
        "print(*sorted(name for name in sys.modules if name.startswith('gpusonde.collector.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "gpusonde.collector.client.query" in loaded
    assert [name for name in loaded if not name.startswith("gpusonde.collector.client")] == [
        "gpusonde.collector.messages"
    ]
