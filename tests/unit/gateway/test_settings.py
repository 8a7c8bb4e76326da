"""Settings: the environment is read whole, what is misspelt or wrong is refused by name."""

from pathlib import Path

import pytest

from towline.gateway.limits import VARIABLES, Allowances
from towline.gateway.settings import Settings, SettingsError, from_environment

SECRET = "s" * 32
NEEDED = {"TOWLINE_STORE_URL": "unix:///s", "TOWLINE_JWT_SECRET": SECRET, "TOWLINE_DATA": "/data"}


def test_the_environment_is_read() -> None:
    settings = from_environment(
        {
            **NEEDED,
            "TOWLINE_ALLOW_PATHS": "/a:/b",
            "TOWLINE_GATEWAY_PORT": "0",
            "TOWLINE_GATEWAY_ORIGINS": "https://a.example, https://b.example",
            "TOWLINE_GATEWAY_TRUSTED_PROXIES": "10.0.0.0/8, ::1, unix",
            "TOWLINE_GATEWAY_PROXY_HEADER": "Forwarded",
            "TOWLINE_GATEWAY_DEVELOPMENT": "yes",
            "PATH": "/bin",
        }
    )
    assert settings == Settings(
        store_url="unix:///s",
        jwt_secret=SECRET.encode(),
        payloads=Path("/data/payloads"),
        port=0,
        origins=("https://a.example", "https://b.example"),
        trusted_proxies=("10.0.0.0/8", "::1", "unix"),
        proxy_header="forwarded",
        allow_paths=("/a", "/b"),
        development=True,
    )


def test_an_object_store_holds_payloads_instead_of_the_data_folder() -> None:
    assert from_environment({**NEEDED, "TOWLINE_PAYLOADS_URL": "s3://bucket/p"}).payloads == "s3://bucket/p"
    with pytest.raises(SettingsError, match="TOWLINE_PAYLOADS_URL"):
        from_environment({**NEEDED, "TOWLINE_PAYLOADS_URL": "memory:///"})


def test_what_is_given_wins_and_none_is_not_given() -> None:
    settings = from_environment({**NEEDED, "TOWLINE_GATEWAY_PORT": "1"}, port=2, host=None)
    assert (settings.port, settings.host) == (2, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOWLINE_GATEWAY_PROT", "1"),
        ("TOWLINE_GATEWAY_PORT", "http"),
        ("TOWLINE_GATEWAY_PORT", "-1"),
        ("TOWLINE_GATEWAY_DEVELOPMENT", "maybe"),
        ("TOWLINE_GATEWAY_HELLO_MS", "1s"),
        ("TOWLINE_GATEWAY_SOCKETS", "0"),
        ("TOWLINE_GATEWAY_RECONNECTS_PER_S", "0"),
        ("TOWLINE_GATEWAY_TRUSTED_PROXIES", "proxy.example"),
        ("TOWLINE_GATEWAY_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("TOWLINE_GATEWAY_PROXY_HEADER", "x-real-ip"),
        ("TOWLINE_GATEWAY_METRICS_BIND", "9100"),
        ("TOWLINE_GATEWAY_METRICS_BIND", ":9100"),
        *(
            ("TOWLINE_GATEWAY_PUBLIC_URL", text)
            for text in ("agents", "/agents", "ftp://h/x", "https://", "https://h/a?b", "https://u:p@h", "https://h/v1")
        ),
        *(("TOWLINE_GATEWAY_PUBLIC_URL", f"https://h{rest}") for rest in ("/a//b", "/../x", "/a b", ":x/a", "/a#b")),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        from_environment({**NEEDED, name: value})


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_asked_for(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        from_environment({key: value for key, value in NEEDED.items() if key != name})


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(SettingsError, match="32"):
        from_environment({**NEEDED, "TOWLINE_JWT_SECRET": "short"})


def test_limits_are_settings_of_their_own() -> None:
    settings = from_environment(
        {
            **NEEDED,
            "TOWLINE_GATEWAY_COMMANDS_PER_S": "7",
            "TOWLINE_GATEWAY_ADDRESS_FACTOR": "0",
            "TOWLINE_GATEWAY_METRICS_BIND": "[::1]:9100",
        }
    )
    assert settings.limits == Allowances(commands_per_s=7, address_factor=0)
    assert settings.metrics_bind == ("::1", 9100)


def test_each_limit_has_its_variable() -> None:
    assert {name.lower() for name in VARIABLES} == set(Allowances.__struct_fields__)


@pytest.mark.parametrize("address", ["https://id.example/keys", "http://127.0.0.1:1/k", "/etc/towline/keys.json"])
def test_with_the_keys_of_an_issuer_no_secret_is_needed(address: str) -> None:
    environment = {key: value for key, value in NEEDED.items() if key != "TOWLINE_JWT_SECRET"}
    settings = from_environment(
        {
            **environment,
            "TOWLINE_GATEWAY_JWKS": address,
            "TOWLINE_GATEWAY_ISSUER": "me",
            "TOWLINE_GATEWAY_AUDIENCE": "t",
        }
    )
    assert (settings.jwt_secret, settings.jwks, settings.issuer, settings.audience) == (None, address, "me", "t")


@pytest.mark.parametrize(
    ("name", "value"),
    [("JWKS", "http://id.example/keys"), ("JWKS", "https://"), ("JWKS", ""), ("ISSUER", ""), ("AUDIENCE", "")],
)
def test_keys_that_came_in_the_clear_are_anybodys(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        from_environment({**NEEDED, f"TOWLINE_GATEWAY_{name}": value})


def test_a_public_address_has_no_slash_at_its_end() -> None:
    for given, kept in (("https://h:8443/a/b/", "https://h:8443/a/b"), ("https://h/", "https://h")):
        assert from_environment({**NEEDED, "TOWLINE_GATEWAY_PUBLIC_URL": given}).public_url == kept
