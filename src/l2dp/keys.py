"""Secret keys of a home: files that only their owner may read, made in one step, overwritten before they are removed.

They can be encrypted at rest with a key that is kept elsewhere: in the environment (`L2DP_KEY`) or in a file that
`L2DP_KEY_FILE` names. A key never appears in a message.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from l2dp.durable import PRIVATE, write_bytes
from l2dp.errors import BadInput, L2dpError

KEY_BYTES = 32
VARIABLE, FILE_VARIABLE = "L2DP_KEY", "L2DP_KEY_FILE"
_MARK = b"l2dp encrypted 1\n"
_NONCE = 12


class Cipher:
    """Encryption at rest: ChaCha20-Poly1305 with a 256-bit key and a fresh random nonce for every text.

    Guarantee
    ---------
    Without the key a text tells its length and nothing else, and a text that was changed, or that was written under
    another name, is refused.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise BadInput(f"a key for encryption has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = ChaCha20Poly1305(key)

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Cipher | None:
        """The cipher that `L2DP_KEY` (64 hexadecimal digits) or `L2DP_KEY_FILE` asks for; None: neither is set."""
        environment = os.environ if environment is None else environment
        text, name = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
        if text is not None and name is not None:
            raise BadInput(f"{VARIABLE} and {FILE_VARIABLE} are both set; keep one of them")
        where = VARIABLE
        if name is not None:
            path = Path(name)
            where = f"{FILE_VARIABLE} ({path})"
            _refuse_shared(path)
            try:
                text = path.read_text("ascii").strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise BadInput(f"{where} cannot be read: {reason}") from None
        if text is None:
            return None
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise BadInput(f"{where} must hold 64 hexadecimal digits; make some with: openssl rand -hex 32")
        return Cipher(key)

    def encrypt(self, data: bytes, name: str) -> bytes:
        nonce = os.urandom(_NONCE)
        return _MARK + nonce + self._cipher.encrypt(nonce, data, name.encode())

    def decrypt(self, data: bytes, name: str) -> bytes:
        """Raises InvalidTag for a wrong key, a changed text or another name."""
        start = len(_MARK)
        return self._cipher.decrypt(data[start : start + _NONCE], data[start + _NONCE :], name.encode())


def check_of(key: bytes) -> str:
    """Tells whether two keys are the same, and nothing about them."""
    return hmac.digest(key, b"l2dp key check", "sha256").hex()


def is_encrypted(data: bytes) -> bool:
    return data.startswith(_MARK)


class Keys:
    """The secret keys of one home, in a folder of their own, each 256 bits under a name.

    Guarantee
    ---------
    A key is durable when `write` returns, and only its owner can read it (folder 0700, files 0600). With a cipher it is
    encrypted on the disk. `remove` overwrites the file before it takes it away; on copy-on-write file systems, flash
    and in backups an older copy may outlive that, which only encryption at rest helps against.
    """

    def __init__(self, folder: Path, cipher: Cipher | None = None) -> None:
        self._folder = folder
        self._cipher = cipher

    def create(self, name: str) -> bytes:
        """A new key from the operating system's entropy, durable when it is returned."""
        key = os.urandom(KEY_BYTES)
        self.write(name, key)
        return key

    def write(self, name: str, key: bytes) -> None:
        """Keeps a key under a name, in place of one that was there."""
        if len(key) != KEY_BYTES:
            raise BadInput(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise L2dpError(f"cannot make the folder {self._folder}: {error.strerror}") from error
        data = key if self._cipher is None else self._cipher.encrypt(key, name)
        write_bytes(self._path(name), data, PRIVATE)

    def read(self, name: str) -> bytes:
        path = self._path(name)
        _refuse_shared(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read the key {path}: {error.strerror}; restore it from a backup") from error
        if is_encrypted(data):
            if self._cipher is None:
                raise BadInput(f"the key {path} is encrypted; set {VARIABLE} or {FILE_VARIABLE}")
            try:
                data = self._cipher.decrypt(data, name)
            except InvalidTag:
                raise BadInput(
                    f"the key {path} was encrypted with another key or was changed; check {VARIABLE} or {FILE_VARIABLE}"
                ) from None
        if len(data) != KEY_BYTES:
            raise BadInput(f"the key {path} is damaged; restore it from a backup")
        return data

    def holds(self, name: str) -> bool:
        return self._path(name).exists()

    def names(self) -> list[str]:
        if not self._folder.exists():
            return []
        return sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))

    def remove(self, name: str) -> None:
        """Overwrites a key and removes it, durably. Once more is no harm."""
        path = self._path(name)
        try:
            with path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                file.write(os.urandom(size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise L2dpError(f"could not remove the key {path}: {error.strerror}; remove it by hand") from error

    def faults(self) -> list[str]:
        """What is wrong with the keys, in plain words."""
        found = []
        if self._folder.exists() and stat.S_IMODE(self._folder.stat().st_mode) & 0o077:
            found.append(f"{self._folder} is open to other users; close it with: chmod 700 {self._folder}")
        for name in self.names():
            try:
                self.read(name)
            except BadInput as error:
                found.append(str(error))
                continue
            if self._cipher is not None and not is_encrypted(self._path(name).read_bytes()):
                found.append(f"the key {self._path(name)} is not encrypted, and a key for that is set")
        return found

    def sweep(self) -> None:
        """Removes what a killed process was writing, for one process at a time."""
        for path in self._folder.glob(".*"):
            self.remove(path.name)

    def _path(self, name: str) -> Path:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise BadInput(f"{name!r} is no name for a key")
        return self._folder / name


def _refuse_shared(path: Path) -> None:
    """A secret that others can read is none."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # reading it will say why
    if mode & 0o077:
        raise BadInput(f"{path} can be read by other users; close it with: chmod 600 {path}")
