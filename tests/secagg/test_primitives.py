# SPDX-License-Identifier: Apache-2.0
"""The primitives, as the package uses them, against the vectors of their standards."""

import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.secagg import primitives
from agnosticfl.secagg.primitives import BLOCK, CryptoError

unhex = bytes.fromhex


def test_x25519_is_that_of_rfc_7748():
    # Section 6.1.
    alice = unhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = unhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    secret = unhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    of_alice, of_bob = primitives.public_key(alice), primitives.public_key(bob)
    assert of_alice.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert of_bob.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert primitives.agree(alice, of_bob) == primitives.agree(bob, of_alice) == secret


def test_a_public_key_of_small_order_is_refused():
    with pytest.raises(CryptoError, match="small order"):
        primitives.agree(bytes(range(32)), bytes(32))


def test_hkdf_is_that_of_rfc_5869():
    # Test case 1 asks for 42 bytes; a shorter output is their beginning.
    salt, info = unhex("000102030405060708090a0b0c"), unhex("f0f1f2f3f4f5f6f7f8f9")
    expected = (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert primitives.derive(b"\x0b" * 22, salt, info) == unhex(expected)[:32]


def test_signatures_are_those_of_rfc_8032():
    # Section 7.1, test 2.
    secret = unhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = unhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = unhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    key = Ed25519PrivateKey.from_private_bytes(secret)
    assert primitives.verify_key(key) == public
    assert key.sign(b"\x72") == signature
    primitives.check_signature(public, signature, b"\x72")
    with pytest.raises(CryptoError, match="signature"):
        primitives.check_signature(public, signature, b"\x73")


def test_boxes_are_those_of_the_gcm_specification():
    # Test case 16 of McGrew and Viega.
    key = unhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce, bound_to = "cafebabefacedbaddecaf888", unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    cipher = (
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    )
    plain = unhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    box = unhex(nonce + cipher + "76fc6ece0f4e1768cddf8853bb2d551b")
    assert primitives.unseal(key, box, bound_to) == plain
    with pytest.raises(CryptoError, match="does not open"):
        primitives.unseal(key, box, bound_to + b"!")


def test_a_box_opens_for_what_it_was_sealed_and_never_looks_the_same():
    key = bytes(32)
    boxes = [primitives.seal(key, b"secret", b"a to b") for _ in range(2)]
    assert boxes[0] != boxes[1]
    assert [primitives.unseal(key, box, b"a to b") for box in boxes] == [b"secret"] * 2


def test_masks_are_the_key_stream_of_aes_256_in_counter_mode():
    # Blocks 0, 1 and 2 under the zero key: H, tag and ciphertext of the GCM specification's test
    # cases 13 and 14.
    stream = (
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e"
        "074ec5d3baf39d18"
    )
    mask = np.zeros(12, "<u4")
    primitives.add_mask(mask, bytes(32), +1)
    assert mask.tobytes() == unhex(stream)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_a_mask_taken_off_leaves_what_was_there(length: int):
    vector = np.arange(length, dtype="<u4")
    masked = vector.copy()
    primitives.add_mask(masked, b"k" * 32, +1)
    assert length == 1 or not np.array_equal(masked, vector)
    longer = np.zeros(length + 5, "<u4")
    primitives.add_mask(longer, b"k" * 32, +1)
    assert np.array_equal(masked - vector, longer[:length])  # one stream, whatever its pieces
    primitives.add_mask(masked, b"k" * 32, -1)
    assert np.array_equal(masked, vector)


def test_shares_are_those_of_ssss():
    # Made by the program ssss (threshold 2, no diffusion layer), whose polynomial has one term
    # more, x²: 1, 4 and 5 for the holders 1, 2 and 3.
    made = ["594ae8964294174d95c33756d2504170", "d897459d29da574eb40e93ec552ffe6e"]
    made += ["5823de9bf0e068b054b5f07a28056b1b"]
    shares = [
        (int(share, 16) ^ square).to_bytes(16, "big")
        for share, square in zip(made, (1, 4, 5), strict=True)
    ]
    for holders in itertools.combinations(range(3), 2):
        secret = primitives.combine({j: shares[j] for j in holders})
        assert secret.hex() == "d9fe73909bae28b3757854c0af7ad405"


@given(st.binary(min_size=16, max_size=16), st.integers(1, 6), st.integers(0, 4), st.data())
def test_any_t_shares_give_the_secret(
    secret: bytes, threshold: int, more: int, data: st.DataObject
):
    shares = primitives.split(secret, threshold, threshold + more)
    places = st.permutations(range(threshold + more))
    chosen = data.draw(places)[:threshold]
    assert primitives.combine({j: shares[j] for j in chosen}) == secret


def test_no_two_lists_of_parts_have_one_digest():
    assert primitives.digest(b"ab", b"c") != primitives.digest(b"a", b"bc")
