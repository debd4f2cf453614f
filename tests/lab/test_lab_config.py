"""Toggles have one definition for the command line, JSON and the screen.

Wrong values name what is allowed.
"""

from __future__ import annotations

import argparse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.lab.config import TOGGLES, ConfigError, LabConfig, Toggle, add_toggles
from tests.fakes.cases import each


def parse(*words: str) -> LabConfig:
    parser = argparse.ArgumentParser()
    add_toggles(parser)
    return LabConfig.from_arguments(parser.parse_args(words))


def test_defaults_need_no_argument() -> None:
    assert parse() == LabConfig()


def test_command_line_json_and_flags_are_the_same_configuration() -> None:
    config = parse(
        "--model", "conv", "--amp", "bf16", "--batch", "32", "--accumulate", "4", "--steps", "7"
    )
    assert config == LabConfig(model="conv", amp="bf16", batch=32, accumulate=4, steps=7)
    assert LabConfig.from_json(config.to_json()) == config
    assert parse(*config.flags()) == config


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--model", "resnet"), ["--model", "'resnet'", "mlp", "conv", "gpt", "gpt-small"]),
        (("--amp", "fp8"), ["--amp", "off, bf16, fp16"]),
        (("--device", "tpu"), ["--device", "auto, cpu, cuda"]),
        (("--batch", "0"), ["--batch", "1 to 1,048,576"]),
        (("--batch", "many"), ["--batch", "'many'", "whole number"]),
        (("--accumulate", "-1"), ["--accumulate", "1 to 4,096"]),
        (("--seed", "1.5"), ["--seed", "whole number"]),
        (("--steps", "0"), ["--steps", "1 to"]),
    ],
)
def test_a_wrong_value_lists_what_is_allowed(words: tuple[str, str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse(*words)
    for part in named:
        assert part in str(error.value)


def test_an_unknown_toggle_lists_the_toggles() -> None:
    with pytest.raises(ConfigError, match=r"'warp'.*model.*accumulate"):
        LabConfig.from_mapping({"warp": 9})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([toggle.name for toggle in TOGGLES] + ["steps", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers()),
    )
)
def test_whatever_comes_is_a_configuration_or_a_config_error(values: dict[str, object]) -> None:
    try:
        config = LabConfig.from_mapping(values)
    except ConfigError:
        return
    assert LabConfig.from_json(config.to_json()) == config


@given(st.text())
def test_text_that_is_no_json_object_is_a_config_error(text: str) -> None:
    try:
        LabConfig.from_json(text)
    except ConfigError:
        pass


def test_a_changed_toggle_is_checked() -> None:
    assert LabConfig().changed("amp", "fp16").amp == "fp16"
    with pytest.raises(ConfigError):
        LabConfig().changed("amp", "int8")


def test_a_family_has_a_preset_for_each_device_and_a_preset_is_itself() -> None:
    assert LabConfig(model="gpt").preset("cpu") == "gpt-tiny"
    assert LabConfig(model="gpt").preset("cuda") == "gpt-small"
    assert LabConfig(model="gpt-tiny").preset("cuda") == "gpt-tiny"


@each("toggle", [toggle for toggle in TOGGLES if toggle.yes_no])
def test_a_switch_is_turned_on_and_off(toggle: Toggle) -> None:
    on, off = parse(toggle.flag), parse(toggle.flag.replace("--", "--no-", 1))
    assert (getattr(on, toggle.name), getattr(off, toggle.name)) == (True, False)
    for config in (on, off):
        assert parse(*config.flags()) == config
        assert LabConfig.from_json(config.to_json()) == config
    assert LabConfig(**{toggle.name: "on"}) == on  # as the screen writes it
    with pytest.raises(ConfigError, match="on, off"):
        LabConfig(**{toggle.name: 1})


def test_a_switch_that_is_left_alone_may_be_torchs_own_choice() -> None:
    assert LabConfig().fused is None
    assert LabConfig().set_to_none is True
    assert "--no-set-to-none" in LabConfig(set_to_none=False).flags()
    assert "--no-tf32" not in LabConfig(tf32=False).flags()
    assert "--no-fused" in LabConfig(fused=False).flags()


def test_a_model_of_ones_own_is_named_by_module_and_factory() -> None:
    config = parse("--model", "my.models:Net.make")
    assert config.factory == "my.models:Net.make"
    assert config.preset("cuda") == "my.models:Net.make"
    assert parse(*config.flags()) == config
    assert LabConfig(model="gpt-small").factory is None


@pytest.mark.parametrize(
    "name", ["a:", ":b", "a:b:c", "a b:c", "../a:b", "a.py:b()", "a;rm:b", "1a:b", "a:b\n", "-a:b"]
)
def test_what_is_no_module_and_factory_is_no_model(name: str) -> None:
    with pytest.raises(ConfigError, match="MODULE:FACTORY"):
        LabConfig(model=name)


def test_ddp_and_fsdp_train_in_processes() -> None:
    assert [LabConfig(parallel=kind).processes for kind in ("none", "dp", "ddp", "fsdp")] == [
        False,
        False,
        True,
        True,
    ]


def test_a_command_says_what_differs_from_the_defaults() -> None:
    config = LabConfig(parallel="ddp", nproc=4, checkpoint=True, loader="workers", prefetch=3)
    assert config.command(nproc=2) == (
        "gpuscope lab --parallel ddp --nproc 2 --checkpoint --loader workers --prefetch 3"
    )


def test_help_names_every_toggle_its_choices_and_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_toggles(parser)
    text = " ".join(parser.format_help().split())
    for toggle in TOGGLES:
        assert toggle.flag in text
        assert toggle.help.replace("-", "") in text.replace("- ", "").replace("-", "")
