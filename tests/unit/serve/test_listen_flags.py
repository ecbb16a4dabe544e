"""The flags of the certificate and of the origins of web pages, checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from sglang_omni import launch_server


def parsed(*flags: str) -> launch_server.argparse.Namespace:
    return launch_server._parse(launch_server.build_parser(), flags)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    files[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(files[1]))
    return files


def test_a_fleets_router_listens(certificate: tuple[Path, Path]) -> None:
    chain, key = map(str, certificate)
    flags = (
        "--ssl-certfile",
        chain,
        "--ssl-keyfile",
        key,
        "--allowed-origins",
        "https://A.example:8443/",
        "*",
    )
    router = parsed("--dp-size", "2", *flags).router
    assert router == {
        "tls_cert_path": chain,
        "tls_key_path": key,
        "cors_allowed_origins": ["https://a.example:8443", "*"],
    }
    assert parsed(*flags).access.allowed_origins == ("https://a.example:8443", "*")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--ssl-certfile", "CHAIN"), "give both, or neither"),
        (("--ssl-certfile", "CHAIN", "--ssl-keyfile", "/none"), "/none cannot be read: No such file"),
        (("--ssl-certfile", "KEY", "--ssl-keyfile", "CHAIN"), "no certificate with its key, both in PEM"),
        (("--allowed-origins", "a.example"), "is no origin, as https://example.org:8443 is one"),
        (("--allowed-origins", "https://a.example/page"), "is no origin"),
        (("--allowed-origins", "https://a.example:x"), "is no origin"),
        (
            ("--dp-size", "2", "--allowed-origins", "*", "--router-cors-allowed-origins", "*"),
            "--allowed-origins and --router-cors-allowed-origins are the same in a fleet",
        ),
    ],
)
def test_what_cannot_be_is_said(
    flags: tuple[str, ...],
    words: str,
    certificate: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"CHAIN": str(certificate[0]), "KEY": str(certificate[1])}
    with pytest.raises(SystemExit):
        parsed(*(names.get(flag, flag) for flag in flags))
    assert words in capsys.readouterr().err
