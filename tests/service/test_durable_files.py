"""Files that survive a loss of power: whole or not at all, whatever fails; directories for one process."""

import fcntl
import os
import stat
import subprocess
import sys

import pytest
from support.faulty_files import FaultyFiles, PowerLost

from gpusonde.errors import DirectoryLockedError
from gpusonde.service.durable_files import DirectoryLock, OsFiles, write_durably

OLD, NEW = b"old", b"new" * 1000


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_power_at_any_operation_leaves_the_old_content_or_the_new(tmp_path, seed):
    operations = 0
    while True:
        directory = tmp_path / str(operations)
        directory.mkdir()
        files = FaultyFiles(seed)
        write_durably(directory / "file", OLD, files=files)
        files.power_lost_in = operations
        try:
            write_durably(directory / "file", NEW, files=files)
        except PowerLost:
            files.lose_power()
            assert (directory / "file").read_bytes() in (OLD, NEW)
            operations += 1
            continue
        files.lose_power()
        assert (directory / "file").read_bytes() == NEW
        break
    assert operations >= 5  # create, write, sync, rename, sync of the directory


@pytest.mark.parametrize("fault", ["full", "sync_fails"])
def test_a_disk_that_refuses_is_told_by_the_file_s_own_name_and_costs_nothing(tmp_path, fault):
    files = FaultyFiles()
    write_durably(tmp_path / "file", OLD, files=files)
    setattr(files, fault, True)
    with pytest.raises(OSError, match="file") as caught:
        write_durably(tmp_path / "file", NEW, files=files)
    assert caught.value.filename == str(tmp_path / "file")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": OLD}


def test_permissions_are_those_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_durably(tmp_path / "file", OLD)
        write_durably(tmp_path / "own", OLD, mode=0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "own")] == [0o640, 0o600]


def test_reads_and_writes_go_where_they_are_told(tmp_path):
    file = OsFiles().create(tmp_path / "file")
    file.write(b"abcdef", 0)
    file.write(b"XY", 2)
    assert (file.read(100, 1), file.read(3, 100)) == (b"bXYef", b"")
    file.truncate(3)
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abX"
    with pytest.raises(FileExistsError):
        OsFiles().create(tmp_path / "file")


def test_a_directory_is_held_by_one_process_and_free_when_that_is_gone(tmp_path):
    lock = DirectoryLock(tmp_path, "baker", sleep=lambda seconds: None)
    assert lock.holder() is None
    with lock:
        assert lock.holder() == str(os.getpid())
        other = DirectoryLock(tmp_path, "baker", sleep=lambda seconds: None)
        with pytest.raises(DirectoryLockedError, match=rf"another baker \(process {os.getpid()}\)") as caught:
            other.acquire()
        assert caught.value.path == tmp_path
    assert lock.holder() is None
    script = (
        "import os, signal, sys; from pathlib import Path; from gpusonde.service.durable_files import DirectoryLock\n"
        "DirectoryLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with lock:
        pass


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_stays(tmp_path):
    (tmp_path / "held").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "held" / "lock").symlink_to(victim)
    lock = DirectoryLock(tmp_path / "held")
    with pytest.raises(OSError, match="symbolic link") as caught:
        lock.acquire()
    assert caught.value.filename == str(tmp_path / "held" / "lock")
    with pytest.raises(OSError, match="symbolic link"):
        lock.holder()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_directory_that_every_user_may_write_to_is_not_held(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="chmod o-w") as caught:
        DirectoryLock(tmp_path).acquire()
    assert caught.value.filename == str(tmp_path)
    assert not (tmp_path / "lock").exists()
    tmp_path.chmod(0o770)
    with DirectoryLock(tmp_path):
        pass


def test_a_holder_who_is_only_asked_about_does_not_keep_others_out(tmp_path):
    with DirectoryLock(tmp_path) as asked:
        pass
    descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        os.close(descriptor)

    with DirectoryLock(tmp_path, sleep=sleep):
        assert len(waits) == 1
        assert asked.holder() == str(os.getpid())
