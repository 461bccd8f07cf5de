"""Whether a drand network has signed a round: a BLS signature on BLS12-381, by one key that its name pins.

Networks of the scheme `bls-unchained-g1-rfc9380` (quicknet) sign the hash of the round's number, with
signatures in G1 and the key in G2: e(signature, generator) = e(hash of the round, key). The pairing is that
of the library blst, which `pip install 'atoll[drand]'` brings; without it signatures are kept unchecked.
"""

import hashlib
import importlib
import importlib.util
import struct
from collections.abc import Mapping
from typing import Any

SCHEME = "bls-unchained-g1-rfc9380"
SUITE = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
"""How a message becomes a point (RFC 9380, section 8.8.1)."""
GENERATOR = bytes.fromhex(
    "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
    "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8"
)
"""Of G2, compressed."""
LIBRARY = "pyblst"


def is_here() -> bool:
    """Whether signatures can be checked on this machine."""
    return importlib.util.find_spec(LIBRARY) is not None


def name_of(info: Mapping[str, Any]) -> str:
    """The hash by which a network is named: over its period, its beginning, its key, its group and its id."""
    total = hashlib.sha256(struct.pack(">Iq", int(info["period"]), int(info["genesis_time"])))
    total.update(bytes.fromhex(info["public_key"]) + bytes.fromhex(info["groupHash"]))
    label = (info.get("metadata") or {}).get("beaconID", "default")
    total.update(b"" if label in ("", "default") else str(label).encode())
    return total.hexdigest()


def key_of(info: Mapping[str, Any], anchor: str) -> str:
    """The key of a network whose rounds we can check; nothing for one of another scheme.

    The network's own name pins the key: a ValueError if what it says of itself has another.
    """
    if info.get("schemeID") != SCHEME:
        return ""
    if name_of(info) != anchor:
        raise ValueError("its key is not that of the network with this name")
    return str(info["public_key"])


def is_signed(key: str, number: int, signature: str) -> bool:
    """Whether the holder of a key has signed a round; only where the library is."""
    blst = importlib.import_module(LIBRARY)
    try:
        point = blst.BlstP1Element.uncompress(bytes.fromhex(signature))
        public = blst.BlstP2Element.uncompress(bytes.fromhex(key))
    except ValueError:  # no points of the curve, or not of its group
        return False
    message = hashlib.sha256(struct.pack(">Q", number)).digest()
    hashed = blst.BlstP1Element.hash_to_group(message, SUITE)
    left = blst.miller_loop(point, blst.BlstP2Element.uncompress(GENERATOR))
    return bool(blst.final_verify(left, blst.miller_loop(hashed, public)))
