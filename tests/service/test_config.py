"""What every configuration has from the declaration of its keys."""

import re
from dataclasses import dataclass, field

import pytest

from gpusonde.errors import ConfigError
from gpusonde.service.config import (
    Configuration,
    LogConfig,
    format_duration,
    format_size,
    option,
    parse_duration_s,
    parse_size_bytes,
    take_over,
)


def check_even(value):
    if value % 2:
        raise ValueError(f"{value} is odd")


@dataclass(frozen=True)
class BrewConfig:
    """``[brew]``: what is brewed."""

    wait_s: float = option("duration", "200ms", "time between cups", least="1ms", most="10s", live=True)
    water: int = option("size", "1MiB", "water | milk", zero=True, least="1KiB")
    cups: int = option("count", 2, "cups at a time", check=check_even, live=True)
    kind: str = option("text", "tea", "what is in them", choices=("tea", "coffee"))
    strength: float = option("number", 0.5, "share of leaves", most=1.0)
    hot: bool = option("switch", True, "whether it is hot")


@dataclass(frozen=True)
class KitchenConfig(Configuration):
    """A configuration with one section of its own."""

    environment_prefix = "KITCHEN_"

    brew: BrewConfig = field(default_factory=BrewConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def check(self):
        if self.brew.kind == "coffee" and self.brew.cups > 4:
            raise ConfigError("brew.cups is too many for brew.kind", field="brew.cups")


def load(tmp_path, text, **more):
    path = tmp_path / "kitchen.toml"
    path.write_text(text)
    return KitchenConfig.load(path, **more)


def test_a_declared_key_is_read_from_file_environment_and_command_line(tmp_path):
    assert KitchenConfig().brew == BrewConfig(0.2, 1 << 20, 2, "tea", 0.5, True)
    config = load(
        tmp_path,
        '[brew]\nwait = "1s"\ncups = 4\nkind = "coffee"\n',
        environment={"KITCHEN_BREW_WAIT": "2s", "KITCHEN_BREW_CUPS": "6", "OTHER_BREW_CUPS": "9"},
        overrides={"brew.cups": "2"},
    )
    assert (config.brew.wait_s, config.brew.cups, config.brew.kind) == (2.0, 2, "coffee")


def test_a_declared_key_is_in_the_printed_file_which_reads_back_to_the_same(tmp_path):
    assert (
        KitchenConfig()
        .to_toml()
        .startswith(
            '# what is brewed.\n[brew]\n# time between cups [1ms to 10s, live]\nwait = "200ms"\n'
            '# water | milk [0B, or 1KiB or more]\nwater = "1MiB"\n# cups at a time [live]\ncups = 2\n'
            '# what is in them\nkind = "tea"\n'
        )
    )
    config = KitchenConfig.load(overrides={"brew.wait": "1500ms", "brew.strength": "0.125", "brew.hot": "false"})
    assert load(tmp_path, config.to_toml()) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('wait = "11s"', "11s is out of its range, 1ms to 10s: time between cups"),
        ('wait = "0s"', "1ms to 10s"),
        ('water = "1B"', "0B, or 1KiB or more"),
        ("cups = 3", "3 is odd"),
        ('kind = "mud"', "'mud' is unknown; use tea or coffee"),
        ("strength = 1.5", "1.5 is out of its range, 1 or less"),
        ("wait = 3", "3 has no unit"),
        ('wait = "3"', "has no unit"),
        ('wait = "3 parsecs"', "unknown unit 'parsecs'"),
        ('wait = "fast"', "is not a duration"),
        ("water = 1000", "has no unit"),
        ('water = "1Gb"', "unknown unit"),
        ("kind = 7", "put it in quotes"),
        ("cups = 1.5", "not a whole number"),
        ("cups = true", "not a number"),
        ('strength = "quick"', "not a number"),
        ("strength = true", "not a number"),
        ('hot = "perhaps"', "neither true nor false"),
        ("hot = 2", "neither true nor false"),
        ('kind = "coffee"\ncups = 6', "too many"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_key(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"[brew]\n{text}\n")
    assert words in str(caught.value)
    assert caught.value.path == str(tmp_path / "kitchen.toml")
    assert caught.value.field == f"brew.{text.splitlines()[-1].partition(' ')[0]}"
    assert not caught.value.on_command_line


def test_zero_is_allowed_where_it_means_something_else():
    assert KitchenConfig.load(overrides={"brew.water": "0B"}).brew.water == 0


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("[brew]\nwayt = 1", "brew.wayt", "unknown key brew.wayt; did you mean wait? [brew] has wait, water"),
        ("[bru]\nwait = 1", "bru", "unknown section [bru]; known are brew, log"),
        ("wait = 1", "wait", "wait stands outside a section"),
        ("[brew\n", None, "not TOML"),
        ("a = " + "9" * 5000, None, "not TOML"),
        ("[log]\nlevel = " + "9" * 5000, None, "not TOML"),
        ("a = " + "[" * 100_000, None, "not TOML"),
    ],
)
def test_a_file_that_is_not_understood_is_named(tmp_path, text, field, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert (caught.value.path, caught.value.field) == (str(tmp_path / "kitchen.toml"), field)


def test_a_section_without_keys_of_ours_says_nothing(tmp_path):
    assert load(tmp_path, "[shop]\n") == KitchenConfig()


def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path):
    path = tmp_path / "kitchen.toml"
    path.write_bytes(b'[brew]\nkind = "\x9c"\n')
    with pytest.raises(ConfigError, match="save the file as UTF-8") as caught:
        KitchenConfig.load(path)
    assert caught.value.path == str(path)
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        KitchenConfig.load(tmp_path / "none.toml")


def test_what_is_wrong_on_the_command_line_or_in_the_environment_is_told_apart():
    with pytest.raises(ConfigError, match="'brew' is no option") as caught:
        KitchenConfig.load(overrides={"brew": "1"})
    assert caught.value.on_command_line
    with pytest.raises(ConfigError, match="out of its range") as caught:
        KitchenConfig.load(overrides={"brew.wait": "1h"})
    assert caught.value.on_command_line
    with pytest.raises(ConfigError, match="KITCHEN_BREW is no option") as caught:
        KitchenConfig.load(environment={"KITCHEN_BREW": "1"})
    assert not caught.value.on_command_line


@pytest.mark.parametrize(
    "setting",
    [
        {"brew.water": "9" * 5000 + "GiB"},
        {"brew.wait": "9" * 5000 + "s"},
        {"brew.cups": "9" * 5000},
        {"brew.kind": "x" * 1_000_000},
        {"x" * 1_000_000: "1"},
    ],
)
def test_a_value_of_any_size_is_refused_in_few_words(setting):
    with pytest.raises(ConfigError) as error:
        KitchenConfig.load(overrides=setting)
    assert len(str(error.value)) < 3000


def test_a_live_key_is_taken_over_and_the_others_wait():
    running = KitchenConfig()
    assert running.live_keys() == {"brew.wait", "brew.cups", "log.level", "log.format"}
    wanted = KitchenConfig.load(overrides={"brew.wait": "1s", "brew.hot": "false"})
    takeover = take_over(running, wanted, running.live_keys())
    assert takeover.config == KitchenConfig(brew=BrewConfig(wait_s=1.0))
    assert (takeover.taken, takeover.waiting) == ({"brew.wait"}, ("brew.hot",))


def test_a_mixture_that_contradicts_itself_is_refused():
    running = KitchenConfig.load(overrides={"brew.kind": "coffee"})
    wanted = KitchenConfig.load(overrides={"brew.cups": "6"})
    with pytest.raises(ConfigError, match="too many"):
        take_over(running, wanted, running.live_keys())


def test_a_declared_key_is_named_in_the_commented_file():
    brew, _, _ = KitchenConfig().to_toml().partition("\n[log]")
    assert brew.startswith("# what is brewed.\n[brew]\n")
    assert re.findall(r"^(\w+) =", brew, re.MULTILINE) == ["wait", "water", "cups", "kind", "strength", "hot"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100ms", 0.1), ("10s", 10.0), ("1.5h", 5400.0), ("5m", 300.0), ("2d", 172800.0), ("250us", 2.5e-4)],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(("text", "size"), [("1GiB", 1 << 30), ("64 MiB", 64 << 20), ("5GB", 5 * 10**9), ("7B", 7)])
def test_sizes(text, size):
    assert parse_size_bytes(text) == size
    assert parse_size_bytes(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "-1s", "1e3s", "nan s", "1,5s"])
def test_nonsense_is_no_duration(text):
    with pytest.raises(ConfigError):
        parse_duration_s(text)
