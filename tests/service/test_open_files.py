"""The limit on open files: raised as far as the system allows, never lowered."""

import resource

import pytest

from gpusonde.service.process import allow_open_files


@pytest.fixture
def limits():
    """The limits of this process, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_what_is_wanted(limits):
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert allow_open_files(500) == 500
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, hard)


def test_the_hard_limit_is_as_far_as_it_goes(limits):
    _, hard = limits
    if hard == resource.RLIM_INFINITY:
        pytest.skip("no hard limit here")
    assert allow_open_files(hard + 1000) == hard


def test_a_limit_that_is_high_enough_stays(limits):
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    assert allow_open_files(200) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300


def test_a_sandbox_that_forbids_it_leaves_the_limit(limits, monkeypatch):
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))

    def refuse(*_):
        raise PermissionError("no")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert allow_open_files(500) == 300
    monkeypatch.undo()
