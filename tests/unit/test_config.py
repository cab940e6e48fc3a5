"""Settings: later layers win, and whatever is wrong is said with its source."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bellringer import App
from bellringer.config import Config, describe_settings, load_config
from bellringer.errors import ConfigError


def write(folder: Path, text: str) -> None:
    (folder / "bellringer.toml").write_text(text, encoding="utf-8")


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert load_config(environ={}, folder=tmp_path) == Config()


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'port = 1001\nhost = "::1"\nlead = "2s"\nretention = "7d"\n')
    environ = {"BELLRINGER_PORT": "1002", "BELLRINGER_LEAD": "500ms"}
    config = load_config({"port": 1003, "host": None}, environ=environ, folder=tmp_path)
    assert config.port == 1003
    assert config.host == "::1"
    assert config.lead == timedelta(milliseconds=500)
    assert config.retention == timedelta(days=7)


def test_text_from_the_environment_becomes_what_the_setting_is(tmp_path: Path) -> None:
    config = load_config(environ={"BELLRINGER_POOL_SIZE": "20", "BELLRINGER_LOG": "text"}, folder=tmp_path)
    assert (config.pool_size, config.log) == (20, "text")


def test_a_variable_can_name_the_file_of_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dsn").write_text("postgresql://app:secret@db/bellringer\n")
    files = {"BELLRINGER_DSN_FILE": str(tmp_path / "dsn"), "BELLRINGER_TRUSTED_PROXIES_FILE": str(tmp_path / "nets")}
    (tmp_path / "nets").write_text("10.0.0.0/8, 10.1.2.3\n")
    config = load_config(environ=files, folder=tmp_path)
    assert (config.dsn, config.trusted_proxies) == ("postgresql://app:secret@db/bellringer", ("10.0.0.0/8", "10.1.2.3"))
    described = {found.name: found for found in describe_settings(config, environ=files, folder=tmp_path)}
    assert (described["dsn"].source, described["dsn"].where) == ("environment", "BELLRINGER_DSN_FILE")
    assert described["dsn"].value == "postgresql://app:***@db/bellringer"
    monkeypatch.setenv("BELLRINGER_DSN_FILE", files["BELLRINGER_DSN_FILE"])
    monkeypatch.delenv("BELLRINGER_DSN", raising=False)
    assert App().dsn == config.dsn
    both = load_config(environ={**files, "BELLRINGER_DSN": "postgresql://other/"}, folder=tmp_path)
    assert both.dsn == "postgresql://other/"  # as a worker sets it for its child processes
    (tmp_path / "empty").write_text("\n")
    unset = load_config(environ={"BELLRINGER_HEARTBEAT_URL_FILE": str(tmp_path / "empty")}, folder=tmp_path)
    assert unset.heartbeat_url is None  # as an empty variable
    with pytest.raises(ConfigError, match=r"BELLRINGER_DSN_FILE: \S+/absent cannot be read: No such file"):
        load_config(environ={"BELLRINGER_DSN_FILE": str(tmp_path / "absent")}, folder=tmp_path)


@pytest.mark.parametrize(
    ("environ", "message", "hint"),
    [
        ({"BELLRINGER_PROT": "1"}, "BELLRINGER_PROT", "did you mean BELLRINGER_PORT?"),
        ({"BELLRINGER_PORT": "many"}, "BELLRINGER_PORT cannot be 'many'", "int"),
        ({"BELLRINGER_PORT": "70000"}, "BELLRINGER_PORT cannot be 70000", "65535"),
        ({"BELLRINGER_LEAD": "9s"}, "BELLRINGER_LEAD is 9s", "at most 5s"),
        ({"BELLRINGER_LEASE": "10ms"}, "BELLRINGER_LEASE is 10ms", "at least 1s"),
        ({"BELLRINGER_GRACE": "soon"}, "BELLRINGER_GRACE 'soon'", "write it like"),
        ({"BELLRINGER_LOG": "xml"}, "BELLRINGER_LOG cannot be 'xml'", "enum"),
        ({"BELLRINGER_POOL_SIZE": "0"}, "BELLRINGER_POOL_SIZE cannot be 0", "1 to 1000"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_source(
    tmp_path: Path, environ: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ=environ, folder=tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_unknown_key_in_the_file_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    write(tmp_path, 'retentoin = "7d"\n')
    with pytest.raises(ConfigError, match="did you mean 'retention'"):
        load_config(environ={}, folder=tmp_path)


def test_an_unknown_key_that_resembles_nothing_is_answered_with_all(tmp_path: Path) -> None:
    write(tmp_path, "xyzzy = 1\n")
    with pytest.raises(ConfigError, match="known settings are dsn, host, port"):
        load_config(environ={}, folder=tmp_path)


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    write(tmp_path, "port == 1")
    with pytest.raises(ConfigError, match=r"bellringer\.toml cannot be read"):
        load_config(environ={}, folder=tmp_path)


def test_names_of_others_in_the_environment_are_left_alone(tmp_path: Path) -> None:
    kubernetes = {
        "BELLRINGER_PORT": "tcp://10.0.0.7:8700",
        "BELLRINGER_SERVICE_HOST": "10.0.0.7",
        "BELLRINGER_METRICS_PORT": "tcp://10.0.0.8:9100",
        "BELLRINGER_PORT_8700_TCP_ADDR": "10.0.0.7",
        "BELLRINGER_DEBUG": "1",
        "BELLRINGER_DSN": "",
    }
    assert load_config(environ=kubernetes, folder=tmp_path) == Config()


def test_a_missing_database_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match="BELLRINGER_DSN"):
        Config().require_dsn()
