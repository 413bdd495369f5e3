"""Secret keys: private to their owner, durable, encrypted where asked, gone when removed, and never in a message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from l2dp.errors import BadInput, L2dpError
from l2dp.keys import KEY_BYTES, Cipher, Keys, is_encrypted

SECRET = bytes(range(32))


@pytest.fixture(params=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Keys:
    return Keys(tmp_path / "secrets", None if request.param == "plain" else Cipher(b"k" * 32))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "secrets").iterdir())


def test_keys_are_kept_and_private(keys: Keys, tmp_path: Path) -> None:
    os.umask(0)  # whatever the user's habits
    try:
        made = keys.create("fingerprints")
    finally:
        os.umask(0o022)
    keys.write("noise-000001", SECRET)
    assert len(made) == KEY_BYTES
    assert made != keys.create("other")
    assert keys.read("fingerprints") == made
    assert keys.read("noise-000001") == SECRET
    assert keys.names() == ["fingerprints", "noise-000001", "other"]
    assert keys.holds("other")
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    assert keys.faults() == []


def test_a_removed_key_is_overwritten_and_gone(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.write("noise", SECRET)
    (path,) = files(tmp_path)
    other_name = tmp_path / "the same file"
    os.link(path, other_name)
    before = other_name.read_bytes()
    keys.remove("noise")
    keys.remove("noise")
    assert not keys.holds("noise")
    after = other_name.read_bytes()
    assert len(after) == len(before)
    assert SECRET not in after
    assert after != before


def test_what_is_encrypted_shows_nothing_and_needs_its_key(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    Keys(folder, Cipher(b"a" * 32)).write("noise", SECRET)
    (path,) = files(tmp_path)
    assert is_encrypted(path.read_bytes())
    assert SECRET not in path.read_bytes()
    with pytest.raises(BadInput, match=r"noise is encrypted; set L2DP_KEY or L2DP_KEY_FILE$"):
        Keys(folder).read("noise")
    with pytest.raises(BadInput, match="was encrypted with another key or was changed"):
        Keys(folder, Cipher(b"b" * 32)).read("noise")
    good = path.read_bytes()
    for place in range(len(good)):  # every byte counts
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(BadInput):
            Keys(folder, Cipher(b"a" * 32)).read("noise")
    path.write_bytes(good)
    path.rename(folder / "another name")
    with pytest.raises(BadInput, match="was changed"):
        Keys(folder, Cipher(b"a" * 32)).read("another name")


def test_the_same_key_is_never_encrypted_the_same_way(tmp_path: Path) -> None:
    texts = {Cipher(b"a" * 32).encrypt(SECRET, "noise") for _ in range(50)}
    assert len(texts) == 50


def test_faults_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    plain = Keys(folder)
    for name in ("a", "b", "c"):
        plain.create(name)
    (folder / "a").chmod(0o640)
    (folder / "b").write_bytes(b"short")
    folder.chmod(0o750)
    found = plain.faults()
    assert len(found) == 3
    assert "chmod 700" in found[0]
    assert "chmod 600" in found[1]
    assert "damaged" in found[2]
    with pytest.raises(BadInput, match="can be read by other users"):
        plain.read("a")
    assert any("is not encrypted" in text for text in Keys(folder, Cipher(b"a" * 32)).faults())


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "secrets")
    keys.write("noise", SECRET)
    (tmp_path / "secrets" / ".noise.abc").write_bytes(SECRET[:10])
    assert keys.names() == ["noise"]
    keys.sweep()
    assert [path.name for path in files(tmp_path)] == ["noise"]
    assert keys.read("noise") == SECRET


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b"])
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="no name for a key"):
        Keys(tmp_path / "secrets").write(name, SECRET)


def test_a_missing_key_and_a_wrong_length_are_one_clear_line(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "secrets")
    assert keys.names() == []
    with pytest.raises(BadInput, match="cannot read the key"):
        keys.read("noise")
    with pytest.raises(BadInput, match="32 bytes, not 5"):
        keys.write("noise", b"12345")
    (tmp_path / "file").write_text("")
    with pytest.raises(L2dpError, match="cannot make the folder"):
        Keys(tmp_path / "file" / "secrets").create("noise")


def test_the_cipher_comes_from_the_environment(tmp_path: Path) -> None:
    digits = SECRET.hex()
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(digits + "\n")
    text = Cipher(SECRET).encrypt(b"x" * 32, "n")
    for environment in ({"L2DP_KEY": digits}, {"L2DP_KEY_FILE": str(path)}):
        cipher = Cipher.from_environment(environment)
        assert cipher is not None
        assert cipher.decrypt(text, "n") == b"x" * 32
    assert Cipher.from_environment({}) is None


def test_a_bad_setting_is_one_clear_line_without_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text("0123")
    shared = tmp_path / "shared"
    shared.write_text(SECRET.hex())
    shared.chmod(0o644)
    for environment, what in (
        ({"L2DP_KEY": "0123"}, "64 hexadecimal digits"),
        ({"L2DP_KEY": "not hexadecimal"}, "64 hexadecimal digits"),
        ({"L2DP_KEY": ""}, "64 hexadecimal digits"),
        ({"L2DP_KEY_FILE": str(path)}, "64 hexadecimal digits"),
        ({"L2DP_KEY_FILE": str(tmp_path / "none")}, "No such file"),
        ({"L2DP_KEY_FILE": str(shared)}, "can be read by other users"),
        ({"L2DP_KEY": SECRET.hex(), "L2DP_KEY_FILE": str(path)}, "both set"),
    ):
        with pytest.raises(BadInput, match=what) as caught:
            Cipher.from_environment(environment)
        assert "\n" not in str(caught.value)
        assert SECRET.hex() not in str(caught.value)
        assert "0123" not in str(caught.value)
